"""What a comparison found, as one document: `results.json` and the scores beside it.

Numbers are percent, as OpenOOD prints them. Scores and pictures lie beside the document and are
read when they are asked for.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Optional, Union

import numpy as np

from nac_openood.bench.scorer import Scored
from nac_openood.compare import cells
from nac_openood.core import files
from nac_openood.errors import FileError

DOCUMENT = "results.json"
_FORMAT = 1

#: The names of the means over near and far sets, as OpenOOD calls them.
NEAR, FAR = "nearood", "farood"


class Value(NamedTuple):
    """A mean over runs and its (population) standard deviation, None with a single run."""

    mean: float
    std: Optional[float]


@dataclass(frozen=True)
class SetInfo:
    """A data set that was scored; `role` is "id", "csid", "near" or "far"."""

    name: str
    role: str
    images: int
    skipped: int = 0


@dataclass(frozen=True)
class Run:
    """A checkpoint; `accuracy` in percent on the ID test set."""

    name: str
    checkpoint: str
    accuracy: Optional[float] = None


@dataclass(frozen=True)
class Row:
    """A method on a checkpoint.

    Args:
        method: OpenOOD's name, e.g. "temp_scaling".
        title: the paper's name, e.g. "TempScale".
        run: name of the checkpoint's run.
        implementation: whose code made it, with its version.
        status: "ok", "failed" (see `error`), or "absent" (cannot run here, see `error`).
        error: one line.
        metrics: set name, "nearood" or "farood" -> "FPR@95", "AUROC", "AUPR_IN", "AUPR_OUT",
            "ACC" -> percent.
        setup_seconds: fitting and search, with its share of network passes as if run alone.
        ms_per_image: scoring, with the network pass as if run alone.
        peak_mb: memory beyond what was in use before, at its peak.
        shared_pass: whether it ran on features of a pass that several methods shared.
        hyperparameters: in use.
        search: what the search told; for NAC with the overfitting guard.
    """

    method: str
    title: str
    run: str
    implementation: str
    status: str
    error: Optional[str] = None
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    setup_seconds: Optional[float] = None
    ms_per_image: Optional[float] = None
    peak_mb: Optional[float] = None
    shared_pass: bool = False
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    search: Optional[Mapping[str, Any]] = None


@dataclass(frozen=True)
class Example:
    """An image that was hard: `kind` is "id-lowest" or "ood-highest".

    `file` is a PNG relative to the results' folder; `layers` are its scores by layer.
    """

    kind: str
    dataset: str
    name: str
    score: float
    layers: Mapping[str, float]
    file: str


@dataclass(frozen=True)
class Results:
    """The whole comparison; `folder` is where it lies.

    Args:
        id_name: in-distribution data.
        arch: the network.
        command: that makes it again.
        created: ISO date and time of the newest result.
        versions: of what made it.
        machine: on which, e.g. {"device": "cpu", "threads": 2}.
        sets: what was scored, the ID test set first.
        runs: the checkpoints.
        rows: every method on every checkpoint, in the order asked for.
        gallery: the hardest images for NAC.
        paper: rows of measured against published numbers as dicts (see `bench.against.Against`),
            empty where not asked for.
        notes: what a reader should know, e.g. images that were skipped.
    """

    folder: Path
    id_name: str
    arch: str
    command: str
    created: str
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    sets: tuple[SetInfo, ...]
    runs: tuple[Run, ...]
    rows: tuple[Row, ...]
    gallery: tuple[Example, ...] = ()
    paper: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    def methods(self) -> dict[str, list[Row]]:
        """The rows of each method, in the order asked for."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.method, []).append(row)
        return found

    def value(self, method: str, dataset: str, metric: str) -> Optional[Value]:
        """Mean and std over the runs that worked, or None where none did."""
        rows = [r for r in self.rows if r.method == method and r.status == "ok"]
        numbers = [r.metrics[dataset][metric] for r in rows if dataset in r.metrics]
        if not numbers:
            return None
        return Value(float(np.mean(numbers)), float(np.std(numbers)) if len(numbers) > 1 else None)

    def names(self, role: str) -> list[str]:
        """The sets of a role, in order."""
        return [s.name for s in self.sets if s.role == role]

    def scores(self, run: str, method: str, dataset: str) -> Optional[Scored]:
        """The scores of a set, or None where there are none."""
        return cells.read_scores(self.folder, run, method, dataset)

    def save(self) -> None:
        """Write `results.json` into the folder, atomically."""
        document = {"format": _FORMAT, **{k: v for k, v in asdict(self).items() if k != "folder"}}
        files.write_text(self.folder / DOCUMENT, json.dumps(document, indent=1) + "\n")

    @classmethod
    def load(cls, folder: Union[str, Path]) -> Results:
        """Read what `save` wrote; the file itself may be named as well."""
        folder = Path(folder).parent if Path(folder).is_file() else Path(folder)
        path = folder / DOCUMENT
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            version = content.pop("format")
            if version > _FORMAT:
                raise FileError(
                    f"{path} has format {version}; this nac_openood reads up to {_FORMAT}. "
                    "Upgrade it: pip install -U nac-openood."
                )
            parts = {"sets": SetInfo, "runs": Run, "rows": Row, "gallery": Example}
            for name, kind in parts.items():
                content[name] = tuple(kind(**entry) for entry in content[name])
            content["paper"], content["notes"] = tuple(content["paper"]), tuple(content["notes"])
            return cls(folder=folder, **content)
        except FileNotFoundError:
            raise FileError(
                f"there is no {path}: expected a folder that `nac-openood compare --out` wrote."
            ) from None
        except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise FileError(f"{path} is damaged ({error!r}). Run compare again.") from error
