"""The outcome of a comparison: `results.json`, and scores and pictures beside it.

Metrics are in percent, as OpenOOD prints them. Scores and pictures are read when they are needed.
Tables and pages are made from `Results` by `nac_openood.report`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Optional, Union

import numpy as np

from nac_openood import files
from nac_openood.benchmark.run import cells
from nac_openood.benchmark.run.metrics import FAR, METRICS, NEAR
from nac_openood.detector.outcomes import Scores
from nac_openood.errors import FileError

__all__ = ["DOCUMENT", "FAR", "METRICS", "NEAR", "Example", "Results", "Row", "Run", "SetInfo"]
__all__ += ["Value"]

DOCUMENT = "results.json"
_FORMAT = 1


class Value(NamedTuple):
    """A mean over runs and its (population) standard deviation, None for a single run."""

    mean: float
    std: Optional[float]


@dataclass(frozen=True)
class SetInfo:
    """A dataset that was scored; `role` is "id", "csid", "near" or "far"."""

    name: str
    role: str
    images: int
    skipped: int = 0


@dataclass(frozen=True)
class Run:
    """A network; `accuracy` is in percent, on the ID test set."""

    name: str
    checkpoint: str
    accuracy: Optional[float] = None


@dataclass(frozen=True)
class Row:
    """A method on a network.

    Args:
        method: the method's name, e.g. "temp_scaling".
        title: the name in tables, e.g. "TempScale".
        run: name of the network.
        implementation: whose code ran, with its version.
        status: "ok", "failed", or "absent" if the method cannot run here.
        error: why it failed or is absent, on one line.
        metrics: percent by name of an OOD set, "nearood" or "farood", and by metric; see
            `metrics.METRICS`.
        setup_seconds: time of fitting and search, with the network passes as if run alone.
        ms_per_image: time of scoring, with the network pass as if run alone; every batch counts
            as long as the median batch.
        peak_mb: peak memory beyond what was in use before.
        shared_pass: whether it ran on features of a pass that several methods share.
        hyperparameters: those in use.
        search: what the search reports.
        advice: how our method compares with simpler ones on validation data.
        disturbed: whether batches took such different times that `ms_per_image` is uncertain.
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
    advice: Optional[Mapping[str, Any]] = None
    disturbed: bool = False


@dataclass(frozen=True)
class Example:
    """A hard sample: `kind` is "id-lowest" or "ood-highest".

    `file` is a PNG, relative to the results' folder, or None if the sample has no picture;
    `layers` holds its scores per layer.
    """

    kind: str
    dataset: str
    name: str
    score: float
    layers: Mapping[str, float]
    file: Optional[str] = None


@dataclass(frozen=True)
class Results:
    """A whole comparison.

    Args:
        folder: the folder of the results.
        id_name: name of the in-distribution data.
        arch: name of the network.
        command: the command that repeats the comparison.
        created: ISO date and time of the newest result.
        versions: versions of the libraries.
        machine: e.g. {"device": "CPU", "threads": 2}.
        sets: the datasets that were scored, the ID test set first.
        runs: the networks.
        rows: every method on every network, in the order asked for.
        gallery: the samples that NAC finds hardest.
        paper: measured beside published numbers, as dicts of `paper.against.Against`; empty if
            not asked for.
        notes: what a reader should know, e.g. how many images were skipped.
        surrogates: whether hyperparameters were searched against surrogates of OOD data.
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
    surrogates: bool = False

    def methods(self) -> dict[str, list[Row]]:
        """The rows of each method, in the order asked for."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.method, []).append(row)
        return found

    def value(self, method: str, dataset: str, metric: str) -> Optional[Value]:
        """Mean and standard deviation over the runs that worked; None if there is no number."""
        rows = [r for r in self.rows if r.method == method and r.status == "ok"]
        found = [r.metrics.get(dataset, {}).get(metric) for r in rows]
        numbers = [number for number in found if number is not None]
        if not numbers:
            return None
        return Value(float(np.mean(numbers)), float(np.std(numbers)) if len(numbers) > 1 else None)

    def table(self) -> list[dict[str, Any]]:
        """A dict per method, run and dataset, e.g. for `pandas.DataFrame`.

        A method without numbers has one dict, with `status`, `error` and no dataset.
        """
        roles = {s.name: s.role for s in self.sets}
        roles.update({NEAR: "mean of near", FAR: "mean of far"})
        costs = ("setup_seconds", "ms_per_image", "peak_mb", "shared_pass", "disturbed")
        about = ("implementation", "status", "error")
        return [
            {
                **{name: getattr(row, name) for name in ("method", "title", "run")},
                "dataset": dataset,
                "role": roles.get(dataset, ""),
                **{name: row.metrics.get(dataset, {}).get(name) for name in METRICS},
                **{name: getattr(row, name) for name in (*costs, *about)},
            }
            for row in self.rows
            for dataset in row.metrics or [""]
        ]

    def names(self, role: str) -> list[str]:
        """The names of the datasets of a role, in order."""
        return [s.name for s in self.sets if s.role == role]

    def scores(self, run: str, method: str, dataset: str) -> Optional[Scores]:
        """The scores of a dataset, or None if there are none."""
        return cells.read_scores(self.folder, run, method, dataset)

    def save(self) -> None:
        """Write `results.json` into the folder, atomically."""
        document = {"format": _FORMAT, **{k: v for k, v in asdict(self).items() if k != "folder"}}
        files.write_text(self.folder / DOCUMENT, json.dumps(document, indent=1) + "\n")

    @classmethod
    def load(cls, folder: Union[str, Path]) -> Results:
        """Read what `save` wrote, from its folder or file.

        Raises:
            FileError: there is no such file, or it is damaged or newer than this package.
        """
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
                f"there is no {path}: expected the folder of a comparison (its `out`)."
            ) from None
        except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise FileError(f"{path} is damaged ({error!r}). Repeat the comparison.") from error
