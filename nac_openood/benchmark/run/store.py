"""The files of a comparison, each written as soon as its content is available, read to resume.

    DIR/results.json                         the tables; see `results.Results`
    DIR/images.json                          image datasets that were checked
    DIR/runs/RUN/features/SET.safetensors    penultimate features; see `network.Features`
    DIR/runs/RUN/METHOD/setup.json           hyperparameters, times, what they were made with
    DIR/runs/RUN/METHOD/SET.safetensors      scores, predictions, labels, scores per layer

Each file is written as a whole or not at all, and holds what it was made with (`made_with`). A
file that is damaged, or was made with other data, settings or code, counts as missing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Optional

import numpy as np
import torch

from nac_openood import files, tensor_files
from nac_openood.detector.outcomes import Scores
from nac_openood.errors import FileError, NACError
from nac_openood.records import from_values

_KIND, _VERSION = "nac_openood scores", 1
_LAYER = "layer."


@dataclass(frozen=True)
class StoredSetup:
    """A method's `setup.json`.

    Args:
        made_with: everything that the setup depends on; `implementation` names the code that ran.
        hyperparameters: those in use.
        search: what the search reports.
        advice: how the method compares with simpler ones, as in `search.advise.Advice.to_dict`.
        seconds: how long it took.
        peak_mb: peak memory.
    """

    made_with: Mapping[str, Any]
    hyperparameters: Mapping[str, Any]
    search: Optional[Mapping[str, Any]]
    advice: Optional[Mapping[str, Any]]
    seconds: float
    peak_mb: Optional[float]


class StoredScores(NamedTuple):
    """Scores of a dataset.

    Args:
        scores: the scores.
        made_with: what they were made with.
        seconds: how long the method took.
        pass_seconds: how long the shared pass over the network took; 0 without one.
        peak_mb: peak memory, or None if it is unknown.
    """

    scores: Scores
    made_with: Any = None
    seconds: float = 0.0
    pass_seconds: float = 0.0
    peak_mb: Optional[float] = None


def method_folder(out: Path, run: str, method: str) -> Path:
    """The folder of a method on a network."""
    return out / "runs" / run / method


def write_scores(path: Path, stored: StoredScores) -> None:
    """Write the scores of a dataset."""
    scores, made_with, *cost = stored
    files.make_folder(path.parent)
    arrays = {k: getattr(scores, k) for k in ("score", "prediction", "label")}
    arrays.update({_LAYER + name: values for name, values in scores.by_layer.items()})
    # copies, since safetensors refuses tensors that share memory
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    about = {"made_with": made_with, "cost": cost}
    tensor_files.write_tensors(path, _KIND, _VERSION, tensors, about)


def read_scores(path: Path) -> Optional[StoredScores]:
    """The scores in a file; None if it is missing or damaged."""
    try:
        tensors, about = tensor_files.read_tensors(path, _KIND, _VERSION)
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        layers = {n[len(_LAYER) :]: a for n, a in arrays.items() if n.startswith(_LAYER)}
        scores = Scores(arrays["score"], arrays["prediction"], arrays["label"], layers)
        own, shared, peak = about["cost"]
        cost = seconds_in(own), seconds_in(shared), None if peak is None else float(peak)
    except (KeyError, TypeError, ValueError):  # a FileError is a ValueError
        return None
    kinds = {"f": (scores.score, *layers.values()), "iu": (scores.prediction, scores.label)}
    right = all(array.dtype.kind in kind for kind, arrays in kinds.items() for array in arrays)
    shapes = {array.shape for arrays in kinds.values() for array in arrays}
    whole = len(shapes) == 1 and scores.score.ndim == 1
    if not (whole and right and bool(np.isfinite(scores.score).all())):
        return None
    return StoredScores(scores, about.get("made_with"), *cost)


def seconds_in(value: Any) -> float:
    """A time in a file: seconds, or samples and seconds of all batches, and what came after them.

    Raises:
        TypeError, ValueError: it is neither.
    """
    if isinstance(value, list):  # as version 0.1 wrote it
        batches, after, *_ = value
        value = sum(float(seconds) for _, seconds in batches) + float(after)
    return float(value)


def read_setup(folder: Path) -> Optional[StoredSetup]:
    """A method's `setup.json`; None if it is missing or damaged."""
    try:
        return from_values(StoredSetup, read_note(folder / "setup.json"))
    except NACError:
        return None


def write_note(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file."""
    files.make_folder(path.parent)
    files.write_json(path, files.with_checksum(content))


def read_note(path: Path) -> Optional[dict[str, Any]]:
    """Read what `write_note` wrote; None if the file is missing or damaged."""
    try:
        content = files.read_json(path)
        return files.checked_content(content) if isinstance(content, dict) else None
    except (OSError, FileError):
        return None


def clear_leftovers(out: Path) -> None:
    """Remove partial files of killed processes after a day; newer ones may still be in use."""
    for path in out.glob("runs/*/*/.*"):
        if path.is_file() and time.time() - path.stat().st_mtime > 24 * 3600:
            files.remove(path)
