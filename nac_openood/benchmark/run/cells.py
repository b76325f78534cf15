"""The cells of a comparison on disk: one folder per run and method, one file per dataset.

    DIR/runs/RUN/METHOD/setup.json           hyperparameters, times, what they were made with
    DIR/runs/RUN/METHOD/SET.safetensors      scores, predictions, labels, scores per layer
    DIR/runs/RUN/METHOD/error.json           why there are no scores

Each file is written as a whole or not at all, and holds what it was made with (`made_with`). A
file that is damaged, or was made with other data, settings or code, counts as missing.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Optional, Type, TypeVar

import numpy as np
import torch

from nac_openood import files, tensor_files
from nac_openood.benchmark.run.meter import Timing
from nac_openood.detector.outcomes import Scores
from nac_openood.errors import FileError, NACError
from nac_openood.files import checked_content, with_checksum
from nac_openood.records import from_values

_KIND = "nac_openood scores"
_VERSION = 1
_LAYER = "layer."
_T = TypeVar("_T")


@dataclass(frozen=True)
class AdviceNote:
    """`nac_openood.search.advice.Advice` as JSON values."""

    against: str
    samples: tuple[int, int]
    auroc: Mapping[str, float]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class SetupNote:
    """A method's `setup.json`.

    Args:
        made_with: all that the setup depends on; `implementation` says whose code ran.
        hyperparameters: those in use.
        search: what the search reports.
        advice: how our method compares with simpler ones, as in `AdviceNote`.
        seconds: how long it took.
        peak_mb: peak memory.
    """

    made_with: Mapping[str, Any]
    hyperparameters: Mapping[str, Any]
    search: Optional[Mapping[str, Any]]
    advice: Optional[Mapping[str, Any]]
    seconds: float
    peak_mb: Optional[float]

    def __post_init__(self) -> None:
        if self.advice is not None:
            from_values(AdviceNote, self.advice, "advice")
        if not isinstance(self.made_with.get("implementation"), str):
            raise NACError("'made_with' does not say whose code ran")
        if not math.isfinite(self.seconds):
            raise NACError(f"'seconds' must be finite, got {self.seconds!r}")


@dataclass(frozen=True)
class ErrorNote:
    """A method's `error.json`: "failed" or "absent", and why."""

    status: str
    error: str

    def __post_init__(self) -> None:
        if self.status not in ("failed", "absent"):
            raise NACError(f"'status' must be failed or absent, got {self.status!r}")


@dataclass(frozen=True)
class RunNote:
    """A network's `run.json`: its accuracy in percent."""

    accuracy: float


def cell_folder(out: Path, run: str, method: str) -> Path:
    """The folder of a method's cells of a run."""
    return out / "runs" / run / method


def write_scores(path: Path, scored: Scores, about: Mapping[str, Any]) -> None:
    """Write the scores of a dataset; `about` holds JSON values."""
    files.make_folder(path.parent)
    arrays = {k: getattr(scored, k) for k in ("score", "prediction", "label")}
    arrays.update({_LAYER + name: values for name, values in scored.by_layer.items()})
    # copies, since safetensors refuses tensors that share memory
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    tensor_files.write_tensors(path, _KIND, _VERSION, tensors, about)


def read_cell(path: Path) -> Optional[tuple[Scores, Mapping[str, Any]]]:
    """Scores and what is known about them; None if the file is missing or damaged."""
    try:
        tensors, about = tensor_files.read_tensors(path, _KIND, _VERSION)
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        layers = {n[len(_LAYER) :]: a for n, a in arrays.items() if n.startswith(_LAYER)}
        scored = Scores(arrays["score"], arrays["prediction"], arrays["label"], layers)
    except (FileError, KeyError, TypeError):  # TypeError: bfloat16, which NumPy does not have
        return None
    kinds = {"f": (scored.score, *layers.values()), "iu": (scored.prediction, scored.label)}
    right = all(array.dtype.kind in kind for kind, arrays in kinds.items() for array in arrays)
    shapes = {array.shape for arrays in kinds.values() for array in arrays}
    whole = len(shapes) == 1 and scored.score.ndim == 1
    return (scored, about) if whole and right and bool(np.isfinite(scored.score).all()) else None


def read_scores(out: Path, run: str, method: str, dataset: str) -> Optional[Scores]:
    """The scores of a cell, or None."""
    found = read_cell(cell_folder(out, run, method) / f"{dataset}.safetensors")
    return None if found is None else found[0]


class Cost(NamedTuple):
    """What scoring a dataset took.

    Args:
        own: time of the method.
        shared: time of the shared pass over the network; empty without one.
        peak_mb: peak memory, or None if it is unknown.
    """

    own: Timing
    shared: Timing
    peak_mb: Optional[float]


def cost_of(about: Mapping[str, Any]) -> Optional[Cost]:
    """The cost that a cell remembers; None if it is damaged."""
    try:
        own, shared, peak = about["cost"]
        return Cost(Timing.read(own), Timing.read(shared), None if peak is None else float(peak))
    except (KeyError, TypeError, ValueError):
        return None


def read_setup(folder: Path) -> Optional[SetupNote]:
    """A method's `setup.json`; None if it is missing or damaged."""
    return _read_as(SetupNote, folder / "setup.json")


def read_error(folder: Path) -> Optional[ErrorNote]:
    """A method's `error.json`; None if it is missing or damaged."""
    return _read_as(ErrorNote, folder / "error.json")


def read_accuracy(out: Path, run: str) -> Optional[float]:
    """The accuracy in a network's `run.json`; None if that is missing or damaged."""
    note = _read_as(RunNote, out / "runs" / run / "run.json")
    return None if note is None else note.accuracy


def _read_as(kind: Type[_T], path: Path) -> Optional[_T]:
    try:
        return from_values(kind, read_note(path))
    except NACError:
        return None


def clear_leftovers(out: Path, older_than: float = 24 * 3600.0) -> None:
    """Remove files that killed processes left half-written; newer ones may still be in use."""
    for path in out.glob("runs/*/*/.*"):
        if path.is_file() and time.time() - path.stat().st_mtime > older_than:
            files.remove(path)


def write_note(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file."""
    files.make_folder(path.parent)
    files.write_json(path, with_checksum(content))


def read_note(path: Path) -> Optional[dict[str, Any]]:
    """What `write_note` wrote; None if the file is missing or damaged."""
    try:
        content = files.read_json(path)
        return checked_content(content) if isinstance(content, dict) else None
    except (OSError, FileError):
        return None
