"""Cells become results: metrics, times, and what failed."""

from __future__ import annotations

import datetime
import platform
from pathlib import Path
from typing import Any, Collection, Iterable, Mapping

import torch

from nac_openood.benchmark.methods.table import NAC, Method
from nac_openood.benchmark.run import cells
from nac_openood.benchmark.run.gallery import hardest
from nac_openood.benchmark.run.meter import Timing, is_disturbed
from nac_openood.benchmark.run.metrics import metrics_by_set
from nac_openood.benchmark.run.results import NetworkInfo, Results, Row, SetInfo
from nac_openood.benchmark.run.study import Study
from nac_openood.search.output import versions
from nac_openood.search.surrogate import SURROGATE_LABEL

_UNFINISHED = "not finished: repeat the comparison to continue from here"


def assemble_results(
    study: Study, visited: Collection[tuple[str, str]], skipped: Mapping[str, int]
) -> Results:
    """Read every cell of the study and tabulate it.

    Args:
        study: what was compared.
        visited: (run, method) pairs whose cells are up to date; others count as unfinished.
        skipped: number of images that were left out, by dataset.
    """
    seen = {run for run, _ in visited}  # cells of other runs may be of other weights
    accuracy = {name: cells.read_accuracy(study.out, name) for name in seen}
    runs = tuple(NetworkInfo(r.name, r.path, accuracy.get(r.name)) for r in study.runs)
    rows = tuple(
        _row(study, run, m) if (run.name, m.name) in visited else _unfinished(run, m)
        for run in runs
        for m in study.methods
    )
    return Results(
        folder=study.out,
        id_name=study.sets.id_name,
        arch=study.arch,
        command=study.command,
        created=_newest(study.out),
        versions=versions(),
        machine=_machine(study, visited),
        sets=tuple(
            SetInfo(name, role, len(study.scored[name]), skipped.get(name, 0))
            for name, role in study.sets.roles().items()
        ),
        runs=runs,
        rows=rows,
        gallery=hardest(study, runs[0].name) if (runs[0].name, NAC) in visited else (),
        notes=(*_notes(study, skipped), *_warnings(rows)),
        surrogates=study.surrogates,
    )


def _notes(study: Study, skipped: Mapping[str, int]) -> tuple[str, ...]:
    """What a reader of the numbers should know."""
    found = [
        f"{n} images of {name} cannot be read and were left out" for name, n in skipped.items()
    ]
    if study.surrogates:
        found.append(f"OOD validation: surrogates of ID validation data ({SURROGATE_LABEL})")
    if not study.search:
        found.append("no search: all methods use their default hyperparameters")
    return tuple(found)


def _warnings(rows: Iterable[Row]) -> list[str]:
    """What is wrong with the settings of our methods; runs that agree are listed together."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for text in (row.advice or {}).get("warnings", []):
            found.setdefault((row.title, text), []).append(row.run)
    return [f"{title} ({', '.join(runs)}): {text}" for (title, text), runs in found.items()]


def _row(study: Study, run: NetworkInfo, method: Method) -> Row:
    folder = cells.cell_folder(study.out, run.name, method.name)
    named = method.name, method.title, run.name
    failure = cells.read_error(folder)
    if failure is not None:
        return Row(*named, "", failure.status, failure.error)
    setup = cells.read_setup(folder)
    found = {n: cells.read_cell(folder / f"{n}.safetensors") for n in study.scored}
    whole = {name: cell for name, cell in found.items() if cell is not None}
    if len(whole) < len(found) or setup is None:
        return _unfinished(run, method)
    costs = [cost for _, about in whole.values() if (cost := cells.cost_of(about)) is not None]
    peaks = [p for p in (setup.peak_mb, *(cost.peak_mb for cost in costs)) if p is not None]
    scores = {name: scored.score for name, (scored, _) in whole.items()}
    images = sum(map(len, scores.values()))
    # over all test sets, since a small one has too few batches for a median
    own, shared = Timing.joined(c.own for c in costs), Timing.joined(c.shared for c in costs)
    return Row(
        *named,
        implementation=setup.made_with["implementation"],
        status="ok",
        metrics=metrics_by_set(scores, study.sets.roles(), run.accuracy),
        setup_seconds=setup.seconds,
        ms_per_image=1000 * (own.typical + shared.typical) / images,
        peak_mb=max(peaks) if peaks else None,
        shared_pass=method.needs == "features",
        hyperparameters=setup.hyperparameters,
        search=setup.search,
        advice=setup.advice,
        disturbed=is_disturbed(own, shared),
    )


def _unfinished(run: NetworkInfo, method: Method) -> Row:
    return Row(method.name, method.title, run.name, "", "failed", _UNFINISHED)


def _newest(out: Path) -> str:
    """The time of the newest scores, so that equal results make equal documents."""
    times = [p.stat().st_mtime for p in out.glob("runs/*/*/*.safetensors")]
    moment = datetime.datetime.fromtimestamp(max(times, default=0.0), datetime.timezone.utc)
    return moment.isoformat(timespec="seconds")


def _machine(study: Study, visited: Collection[tuple[str, str]]) -> dict[str, Any]:
    """Where the networks ran, which need not be the GPU that is there."""
    setups = [cells.read_setup(cells.cell_folder(study.out, *pair)) for pair in visited]
    used = {setup.made_with.get("device") for setup in setups if setup is not None}
    on_gpu = "cuda" in used and torch.cuda.is_available()
    device = torch.cuda.get_device_name() if on_gpu else "CPU"
    return {"device": device, "system": platform.system(), "threads": torch.get_num_threads()}
