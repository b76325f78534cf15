"""What NAC costs: time and memory of setting up and scoring, beside other methods (Table 14)."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import Any, Mapping, Sequence

from nac_openood.analysis.contestants import Contestant, Workload, contestants, workload
from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.options import Options
from nac_openood.analysis.tabulate import printed_entry, text_heads
from nac_openood.benchmark.paper.published import table
from nac_openood.benchmark.run.meter import Meter, Timing, is_disturbed
from nac_openood.benchmark.run.results import Value
from nac_openood.errors import error_text
from nac_openood.network.probe import classify
from nac_openood.progress import bar
from nac_openood.tables import BarGroups, Column, Entry, Table

FORWARD = "Forward pass"
_PAPER = {"GEN": "gen none", "VIM": "vim none", "SHE": "she none",
          "NAC, 1 layer": "nac layer4", "NAC, 2 layers": "nac layer4+layer3",
          "NAC, 3 layers": "nac layer4+layer3+layer2"}  # fmt: skip

#: By method, what `_summary` returns.
_Summary = Mapping[str, Mapping[str, Any]]


def cost(data: AnalysisData, options: Options) -> Finding:
    """Seconds and megabytes of every method, over several trials."""
    work = workload(data, options.most_samples)
    found: dict[str, list[dict[str, Any]]] = {FORWARD: []}
    problems: dict[str, str] = {}
    everyone = [m for m in contestants(data, work, options, problems) if _runs(m, work, problems)]
    # trial by trial, so that whatever else the machine does disturbs all methods alike
    for _ in bar(range(options.repeats), "trials", options.progress):
        found[FORWARD].append(_forward(data, work))
        for method in everyone:
            found.setdefault(method.name, []).append(_trial(data, work, method))
    records = _records(found)
    summary = {name: _summary([r for r in records if r["method"] == name]) for name in found}
    disturbed = sum(r["disturbed"] for r in records)
    return Finding(
        "cost",
        "Time and memory",
        _sentence(summary),
        [_table(summary, work, options)],
        [_bars(summary)],
        records,
        {"summary": summary},
        _notes(work, disturbed, len(records), problems),
    )


def _runs(method: Contestant, work: Workload, problems: dict[str, str]) -> bool:
    """Run a method once, not timed: the first batches take longer than all others."""
    try:
        method.set_up(work)
        method.score(work.test[:1])
    except Exception as error:  # methods of others may raise anything
        problems[method.name] = error_text(error)
        return False
    return True


def _measured(data: AnalysisData) -> Meter:
    """A meter for a block that starts with as little memory as possible.

    What an earlier method has freed may still belong to the process; then the peak would not rise.
    """
    gc.collect()
    with suppress(OSError, AttributeError):  # only the C library of Linux can do this
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return Meter(data.bench.device)


def _forward(data: AnalysisData, work: Workload) -> dict[str, Any]:
    """A plain forward pass over the test samples."""
    with _measured(data) as meter:
        for batch in work.test:
            classify(data.bench.net, batch["data"])
    return {"inference_seconds": meter.seconds, "inference_mb": meter.peak_mb,
            "disturbed": _disturbed(meter)}  # fmt: skip


def _trial(data: AnalysisData, work: Workload, method: Contestant) -> dict[str, Any]:
    with _measured(data) as setup:
        n_read = method.set_up(work)
    with _measured(data) as inference:
        method.score(work.test)
    return {
        "setup_seconds": setup.seconds,
        "setup_mb": setup.peak_mb,
        "setup_samples": n_read,
        "inference_seconds": inference.seconds,
        "inference_mb": inference.peak_mb,
        "disturbed": _disturbed(setup) or _disturbed(inference),
    }


def _disturbed(meter: Meter) -> bool:
    return is_disturbed(Timing((), meter.seconds, meter.waited))


def _records(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    keys = ("setup_samples", "setup_seconds", "setup_mb", "inference_seconds", "inference_mb")
    return [
        {"method": name, "trial": number, **{k: trial.get(k) for k in keys},
         "ratio": trial["inference_seconds"] / found[FORWARD][number]["inference_seconds"],
         "disturbed": trial["disturbed"]}
        for name, trials in found.items()
        for number, trial in enumerate(trials)
    ]  # fmt: skip


def _summary(trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means and standard deviations over trials; memory is the largest of the trials."""
    found: dict[str, Any] = {}
    for key in ("setup_seconds", "inference_seconds", "ratio"):
        if trials[0][key] is not None:
            found[key] = Value.of([trial[key] for trial in trials])
    for key in ("setup_mb", "inference_mb"):
        known = [trial[key] for trial in trials if trial[key] is not None]
        found[key] = max(known, default=None)
    found["setup_samples"] = trials[0]["setup_samples"]
    return found


def _table(summary: _Summary, work: Workload, options: Options) -> Table:
    inference = f"Inference, {work.n_test} samples"
    columns = [
        *text_heads("Method"), Column("samples", "Set-up"),
        Column("seconds", "Set-up", "lower"), Column("MB", "Set-up", "lower"),
        Column("seconds", inference, "lower"), Column("x forward", inference, "lower"),
        Column("MB", inference, "lower"),
    ]  # fmt: skip
    if options.against:
        paper = "Paper, Table 14: imagenet with resnet50"
        columns += [Column(title, paper, "lower") for title in ("set-up s", "inference s")]
    rows: list[list[Entry]] = []
    for name, s in summary.items():
        samples = None if s["setup_samples"] is None else str(s["setup_samples"])
        row = [name, samples, s.get("setup_seconds"), s["setup_mb"],
               s["inference_seconds"], s["ratio"], s["inference_mb"]]  # fmt: skip
        rows.append([*row, *(_printed(name) if options.against else [])])
    ours = [number for number, name in enumerate(summary) if name.startswith("NAC")]
    return Table(f"Means over {options.repeats} trials", columns, rows, ours)


def _printed(name: str) -> list[Entry]:
    row = _PAPER.get(name)
    if row is None:
        return [None, None]
    values = table("Table 14").rows[tuple(row.split())][:2]
    return [printed_entry(value) for value in values]


def _bars(summary: _Summary) -> BarGroups:
    rows = [(name, [s["ratio"].mean]) for name, s in summary.items()]
    ours = [name for name in summary if name.startswith("NAC")]
    label = "times the seconds of a plain forward pass (lower is better)"
    return BarGroups("ratio", "Inference time", label, ["inference"], rows, end=1.0, ours=ours)


def _sentence(summary: _Summary) -> str:
    others = {name: s["ratio"].mean for name, s in summary.items() if name != FORWARD}
    told = "; ".join(f"{name} {value:.1f}" for name, value in others.items())
    return f"Scoring time as a multiple of a plain forward pass: {told}."


def _notes(work: Workload, disturbed: int, measured: int, problems: Mapping[str, str]) -> list[str]:
    notes = [
        "Inference is over test samples in memory, so it does not include loading; every method "
        "runs the network itself. Set-up includes loading the training samples. It is without a "
        "search of hyperparameters. Deviations are those of the trials (population standard "
        "deviations). Memory is the peak beyond what was in use before, the largest of the trials, "
        f"in MB. Batches have {work.batch_size} samples; device: {work.device}."
    ]
    if work.n_train < work.all_train:
        notes.append(
            f"Methods that look at all training data were given {work.n_train} of {work.all_train} "
            "training samples here; with all, their set-up takes longer in proportion."
        )
    if disturbed:
        notes.append(
            f"{disturbed} of {measured} measurements were disturbed by other programs: the "
            "process waited for more than 30 % of the time."
        )
    return [*notes, *(f"{name} was left out: {why}" for name, why in problems.items())]
