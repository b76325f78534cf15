"""The cells of a comparison on disk: a folder a method and run, a file a data set.

    DIR/runs/RUN/METHOD/setup.json           hyperparameters, times, what made them
    DIR/runs/RUN/METHOD/SET.safetensors      scores, predictions, labels, scores by layer
    DIR/runs/RUN/METHOD/error.json           why there is no more

Each is written whole or not at all, and says what made it (`made_with`); a cell made with
something else is as good as none.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Mapping, Optional

import torch

from nac_openood.bench.scorer import Scored
from nac_openood.core import files
from nac_openood.errors import FileError

KIND = "nac_openood scores"
_VERSION = 1
_LAYER = "layer."


def cell_folder(out: Path, run: str, method: str) -> Path:
    """Where a method's cells of a run lie."""
    return out / "runs" / run / method


def write_scores(path: Path, scored: Scored, about: Mapping[str, Any]) -> None:
    """Write a data set's scores; `about` are JSON values."""
    files.make_folder(path.parent)
    arrays = {k: getattr(scored, k) for k in ("score", "prediction", "label")}
    arrays.update({_LAYER + name: values for name, values in scored.layers.items()})
    tensors = {
        name: torch.tensor(array) for name, array in arrays.items()
    }  # copies, for none may share
    files.write(path, KIND, _VERSION, tensors, about)


def read_cell(path: Path) -> Optional[tuple[Scored, Mapping[str, Any]]]:
    """Scores and what is known about them; None where there is no readable file."""
    try:
        tensors, about = files.read(path, KIND, _VERSION)
    except FileError:
        return None
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    layers = {n[len(_LAYER) :]: a for n, a in arrays.items() if n.startswith(_LAYER)}
    return Scored(arrays["score"], arrays["prediction"], arrays["label"], layers), about


def read_scores(out: Path, run: str, method: str, dataset: str) -> Optional[Scored]:
    """The scores of a cell, or None."""
    found = read_cell(cell_folder(out, run, method) / f"{dataset}.safetensors")
    return None if found is None else found[0]


def clear_leftovers(out: Path, older_than: float = 24 * 3600.0) -> None:
    """Remove what kills left half-written; a file of today may be another process's at work."""
    for path in out.glob("runs/*/*/.*"):
        if path.is_file() and time.time() - path.stat().st_mtime > older_than:
            path.unlink(missing_ok=True)


def write_note(path: Path, content: Mapping[str, Any]) -> None:
    """Write `setup.json` or `error.json`."""
    files.make_folder(path.parent)
    files.write_text(path, json.dumps(content, indent=1) + "\n")


def read_note(path: Path) -> Optional[dict[str, Any]]:
    """What `write_note` wrote; None where there is no readable file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
