"""Cells become the document: metrics, means, what failed."""

from __future__ import annotations

import datetime
import platform
from pathlib import Path
from typing import Any, Collection, Mapping, Optional

import numpy as np
import torch

from nac_openood.bench.checkpoints import Checkpoint
from nac_openood.bench.methods import METHODS, NAC
from nac_openood.bench.metrics import table_of
from nac_openood.bench.scorer import Scored
from nac_openood.compare import cells
from nac_openood.compare.gallery import hardest
from nac_openood.compare.results import Results, Row, Run, SetInfo
from nac_openood.compare.study import Study
from nac_openood.search.output import versions

_ARRAYS = ("score", "prediction", "label")
_UNFINISHED = "not finished: run the same command again, and it goes on from here"


def assemble(
    study: Study,
    visited: Collection[tuple[str, str]],
    *,
    skipped: Optional[Mapping[str, int]] = None,
    notes: tuple[str, ...] = (),
) -> Results:
    """Read every cell of the study and tabulate it.

    Args:
        study: what was compared.
        visited: (run, method) pairs whose cells are up to date; others count as unfinished.
        skipped: images that were left out, by set.
        notes: what else a reader should know.
    """
    skipped = skipped or {}
    sets = study.sets
    infos = tuple(
        SetInfo(name, role, len(sets.scored()[name]), skipped.get(name, 0))
        for name, role in sets.roles().items()
    )
    seen = {run for run, _ in visited}  # what lies there of others may be of other weights
    runs = tuple(
        Run(r.name, r.path, _accuracy(study, r) if r.name in seen else None) for r in study.runs
    )
    rows = tuple(
        _row(study, run, method) if (run.name, method) in visited else _unfinished(run, method)
        for run in runs
        for method in study.methods
    )
    return Results(
        folder=study.out,
        id_name=sets.name,
        arch=study.arch,
        command=study.command,
        created=_newest(study.out),
        versions=versions(),
        machine=_machine(),
        sets=infos,
        runs=runs,
        rows=rows,
        gallery=hardest(study, runs[0].name) if (runs[0].name, NAC) in visited else (),
        notes=notes,
    )


def _row(study: Study, run: Run, method: str) -> Row:
    folder = cells.cell_folder(study.out, run.name, method)
    named = method, METHODS.get(method, method), run.name
    failure = cells.read_note(folder / "error.json")
    if failure is not None:
        return Row(*named, "", failure["status"], failure["error"])
    setup = cells.read_note(folder / "setup.json") or {}
    found = {n: cells.read_cell(folder / f"{n}.safetensors") for n in study.sets.scored()}
    whole = {name: cell for name, cell in found.items() if cell is not None}
    if len(whole) < len(found) or not setup:
        return _unfinished(run, method)
    about = [note for _, note in whole.values()]
    images = sum(len(scored.score) for scored, _ in whole.values())
    peaks = [n["peak_mb"] for n in (setup, *about) if n["peak_mb"] is not None]
    return Row(
        *named,
        implementation=setup["made_with"]["implementation"],
        status="ok",
        metrics=_metrics(study, {name: scored for name, (scored, _) in whole.items()}, run),
        setup_seconds=setup["seconds"],
        ms_per_image=1000 * sum(note["seconds"] for note in about) / images,
        peak_mb=max(peaks) if peaks else None,
        shared_pass=about[0]["shared_pass"],
        hyperparameters=setup["hyperparameters"],
        search=setup["search"],
    )


def _metrics(study: Study, scored: Mapping[str, Scored], run: Run) -> dict[str, dict[str, float]]:
    sets = study.sets
    inside = [scored[name] for name in ("test", *sets.shifted)]
    joined = (np.concatenate([getattr(s, field) for s in inside]) for field in _ARRAYS)
    score, prediction, label = joined
    near, far = ({n: scored[n] for n in names} for names in (sets.near, sets.far))
    return table_of(
        Scored(score, prediction, label),
        near,
        far,
        float("nan") if run.accuracy is None else run.accuracy,
    )


def _unfinished(run: Run, method: str) -> Row:
    return Row(method, METHODS.get(method, method), run.name, "", "failed", _UNFINISHED)


def _accuracy(study: Study, run: Checkpoint) -> Optional[float]:
    note = cells.read_note(study.out / "runs" / run.name / "run.json") or {}
    return note.get("accuracy")


def _newest(out: Path) -> str:
    """When the newest scores were written: the same results, the same document."""
    times = [p.stat().st_mtime for p in out.glob("runs/*/*/*.safetensors")]
    moment = datetime.datetime.fromtimestamp(max(times, default=0.0), datetime.timezone.utc)
    return moment.isoformat(timespec="seconds")


def _machine() -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"device": gpu or "CPU", "system": platform.system(), "threads": torch.get_num_threads()}
