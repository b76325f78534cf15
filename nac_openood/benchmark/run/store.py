"""The files of a comparison, each written as soon as its content is available.

An interrupted comparison reads them to continue.

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
from contextlib import suppress
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Optional

import torch

from nac_openood import files, tensor_files
from nac_openood.detector.outcomes import Scores
from nac_openood.errors import FileError

_KIND, _VERSION = "nac_openood scores", 1
_LAYER = "layer."


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
    with suppress(KeyError, TypeError, ValueError):  # a FileError is a ValueError
        tensors, about = tensor_files.read_tensors(path, _KIND, _VERSION)
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        layers = {n[len(_LAYER) :]: a for n, a in arrays.items() if n.startswith(_LAYER)}
        scores = Scores(arrays["score"], arrays["prediction"], arrays["label"], layers)
        own, shared, peak = about["cost"]
        cost = seconds_in(own), seconds_in(shared), peak
        return StoredScores(scores, about["made_with"], *cost)
    return None


def seconds_in(value: Any) -> float:
    """A time in a file, in seconds."""
    # version 0.1 wrote samples and seconds of all batches, and the time after the last one
    if isinstance(value, list):
        batches, after, *_ = value
        return sum(seconds for _, seconds in batches) + after
    return value


def write_note(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file."""
    files.make_folder(path.parent)
    files.write_json(path, files.with_checksum(content))


def read_note(path: Path) -> Optional[dict[str, Any]]:
    """Read what `write_note` wrote; None if the file is missing or damaged."""
    with suppress(OSError, FileError):
        content = files.read_json(path)
        return files.checked_content(content) if isinstance(content, dict) else None
    return None


def clear_leftovers(out: Path) -> None:
    """Remove partial files of killed processes after a day; newer ones may still be in use."""
    for path in out.glob("runs/*/*/.*"):
        if path.is_file() and time.time() - path.stat().st_mtime > 24 * 3600:
            files.remove(path)
