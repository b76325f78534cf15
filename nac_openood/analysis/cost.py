"""What NAC costs: time and memory of setting up and scoring, beside other methods (Table 14).

Every method runs the network itself, as it would alone.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence

from torch import nn

from nac_openood.analysis.data import AnalysisData, Options
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.metric_tables import printed_entry, text_heads
from nac_openood.benchmark.methods.backends import scorers
from nac_openood.benchmark.methods.scorer import Given, Scorer
from nac_openood.benchmark.methods.table import Method, chosen_methods
from nac_openood.benchmark.paper.published import table
from nac_openood.benchmark.run.meter import Meter, Timing, is_disturbed
from nac_openood.benchmark.run.results import Value
from nac_openood.detector.batches import batches
from nac_openood.detector.detector import NACDetector
from nac_openood.detector.presets import preset_for
from nac_openood.detector.subset import fitting_loader
from nac_openood.errors import error_text
from nac_openood.network.head import Head, head_of, with_features
from nac_openood.network.probe import classify
from nac_openood.progress import bar
from nac_openood.tables import BarGroups, Column, Entry, Table

FORWARD = "Forward pass"
_BASELINES = ("msp", "gen", "vim", "she")
_PAPER = {"GEN": "gen none", "VIM": "vim none", "SHE": "she none",
          "NAC, 1 layer": "nac layer4", "NAC, 2 layers": "nac layer4+layer3",
          "NAC, 3 layers": "nac layer4+layer3+layer2"}  # fmt: skip


@dataclass(frozen=True)
class Workload:
    """What methods are set up on and what they score.

    Args:
        given: network and fitting data.
        test: batches of test samples, in memory.
        all_train: number of training samples in the dataset; `given` may hold fewer.
    """

    given: Given
    test: Sequence[Mapping[str, Any]]
    all_train: int

    @property
    def n_train(self) -> int:
        """Number of training samples that methods are set up on."""
        return len(self.given.train.dataset)  # type: ignore[attr-defined]

    @property
    def n_test(self) -> int:
        """Number of test samples."""
        return sum(len(batch["data"]) for batch in self.test)


@dataclass(frozen=True)
class Runner:
    """A method: `set_up` returns how many samples it was fitted on, `score` takes batches."""

    name: str
    set_up: Callable[[], int]
    score: Callable[[Sequence[Any]], Any]


def cost(data: AnalysisData, options: Options) -> Finding:
    """Seconds and megabytes of every method, over several trials."""
    work = workload(data, options.most_samples)
    runners, problems = method_runners(data, work, options)
    ready = []
    for runner in runners:  # once without a clock: the first batches take longer than all others
        try:
            runner.set_up()
            runner.score(work.test[:1])
            ready.append(runner)
        except Exception as error:  # methods of others may raise anything
            problems[runner.name] = error_text(error)
    trials: dict[str, list[dict[str, Any]]] = {FORWARD: [], **{each.name: [] for each in ready}}
    # trial by trial, so that whatever else the machine does disturbs all methods alike
    for number in bar(range(options.repeats), "trials", options.progress):
        with _meter(data) as forward:
            for batch in work.test:
                classify(data.bench.net, batch["data"])
        trials[FORWARD].append(_record(FORWARD, number, forward, forward))
        for runner in ready:
            with _meter(data) as setup:
                n_read = runner.set_up()
            with _meter(data) as inference:
                runner.score(work.test)
            record = _record(runner.name, number, inference, forward, n_read, setup)
            trials[runner.name].append(record)
    records = [record for found in trials.values() for record in found]
    summary = {name: _summary(found) for name, found in trials.items()}
    ratios = {name: found["ratio"].mean for name, found in summary.items()}
    ours = [name for name in summary if name.startswith("NAC")]
    listed = "; ".join(f"{n} {value:.1f}" for n, value in ratios.items() if n != FORWARD)
    return Finding(
        "cost", "Time and memory",
        f"Scoring time as a multiple of a plain forward pass: {listed}.",
        [_table(summary, work.n_test, options)],
        [
            BarGroups(
                "ratio", "Inference time",
                "times the seconds of a plain forward pass (lower is better)", ["inference"],
                [(name, [value]) for name, value in ratios.items()], end=1.0, ours=ours,
            )
        ],
        records, {"summary": summary}, _notes(data, work, records, problems),
    )  # fmt: skip


def workload(data: AnalysisData, most: Optional[int] = None) -> Workload:
    """The training data and ID test samples, at most so many of each."""
    given = replace(data.bench.given("network"), search=False, ood_val=None, progress=False)
    all_train = len(given.train.dataset)  # type: ignore[attr-defined]
    if most is not None and most < all_train:
        given = replace(given, train=fitting_loader(given.train, most))
    test: list[dict[str, Any]] = []
    room = most
    for batch in batches(data.bench.study.scored["test"].loader()):
        part = batch.rows(slice(room))
        test.append({"data": part.data, "label": part.labels()})
        room = None if room is None else room - part.size
        if room == 0:
            break
    return Workload(given, test, all_train)


def method_runners(
    data: AnalysisData, work: Workload, options: Options
) -> tuple[list[Runner], dict[str, str]]:
    """Baselines, NAC from its deepest layer to all layers, and NAC+; why others cannot run."""
    rows = [row for row in chosen_methods(options.methods or _BASELINES) if row.rule is None]
    make, found, problems = scorers(rows, options.backend, say=options.say), [], {}
    for row in rows:
        try:
            found.append(_baseline(row, make(row, data.bench.run), work))
        except Exception as error:  # methods of others may raise anything
            problems[row.title] = error_text(error)
    net = data.bench.net
    for n in range(1, len(data.layers) + 1):
        layers = {name: data.settings[name] for name in data.layers[:n]}
        title = f"NAC, {n} layer{'s' if n > 1 else ''}"
        found.append(_own(title, NACDetector(net, layers), data.config.n_samples, work))
    config = preset_for(net, data.id_name, "nac_plus")
    plus, n_val = (
        NACDetector(net, config.layer_choice, rule=config.rule),
        len(data.bench.samples["id_val"]),
    )
    return [*found, _own("NAC+", plus, config.n_samples, work, n_val)], problems


def _own(
    title: str, detector: NACDetector, n_samples: Optional[int], work: Workload, n_val: int = 0
) -> Runner:
    """A detector of this package; with `n_val` it is calibrated on so many ID samples."""
    n_fit = work.n_train if n_samples is None else min(n_samples, work.n_train)

    def set_up() -> int:
        detector.fit(work.given.train, n_fit, progress=False)
        if n_val:
            detector.calibrate(work.given.id_val, progress=False)
        return n_val + n_fit

    return Runner(title, set_up, lambda test: detector.score_loader(test, progress=False))


def _baseline(row: Method, scorer: Scorer, work: Workload) -> Runner:
    """A baseline that computes the features it needs itself."""
    given, featured = work.given, lambda loader: loader
    if row.needs == "features":
        head = head_of(given.net, work.test[0]["data"])[1]

        def featured(loader: Any) -> Any:
            return _Features(work.given.net, head, loader)

        given = replace(
            given, net=Head(head), train=featured(given.train), id_val=featured(given.id_val)
        )

    def set_up() -> int:
        scorer.setup(given)
        return work.n_train if row.uses_train else 0

    return Runner(row.title, set_up, lambda test: scorer.score(featured(test)))


class _Features:
    """A loader of features that are computed while it is read."""

    def __init__(self, net: nn.Module, head: nn.Linear, loader: Iterable[Any]) -> None:
        self._net, self._head, self._loader = net, head, loader

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in batches(self._loader):
            features = with_features(self._net, batch.data, self._head).features
            yield {"data": features, "label": batch.labels()}


def _meter(data: AnalysisData) -> Meter:
    """A meter for a block that starts with as little memory as possible.

    What an earlier method has freed may still belong to the process; then the peak would not rise.
    """
    gc.collect()
    with suppress(OSError, AttributeError):  # only the C library of Linux can do this
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return Meter(data.bench.device)


def _record(
    method: str, trial: int, inference: Meter, forward: Meter,
    n_read: Optional[int] = None, setup: Optional[Meter] = None,
) -> dict[str, Any]:  # fmt: skip
    """What a trial measured; a forward pass needs no setup."""
    meters = [meter for meter in (setup, inference) if meter is not None]
    return {
        "method": method,
        "trial": trial,
        "setup_samples": n_read,
        "setup_seconds": None if setup is None else setup.seconds,
        "setup_mb": None if setup is None else setup.peak_mb,
        "inference_seconds": inference.seconds,
        "inference_mb": inference.peak_mb,
        "ratio": inference.seconds / forward.seconds,
        "disturbed": any(is_disturbed(Timing((), m.seconds, m.waited)) for m in meters),
    }


def _summary(trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means and standard deviations over trials; memory is the largest of the trials."""
    found: dict[str, Any] = {}
    for key in ("setup_seconds", "inference_seconds", "ratio"):
        if trials[0][key] is not None:
            found[key] = Value.of([trial[key] for trial in trials])
    for key in ("setup_mb", "inference_mb"):
        measured = [trial[key] for trial in trials if trial[key] is not None]
        found[key] = max(measured, default=None)
    found["setup_samples"] = trials[0]["setup_samples"]
    return found


def _table(summary: Mapping[str, Mapping[str, Any]], n_test: int, options: Options) -> Table:
    setup, inference = "Set-up", f"Inference, {n_test} samples"
    columns = [
        *text_heads("Method"), Column("samples", setup), Column("seconds", setup, "lower"),
        Column("MB", setup, "lower"), Column("seconds", inference, "lower"),
        Column("x forward", inference, "lower"), Column("MB", inference, "lower"),
    ]  # fmt: skip
    if options.against:
        paper = "Paper, Table 14: imagenet with resnet50"
        columns += [Column(title, paper, "lower") for title in ("set-up s", "inference s")]
    rows: list[list[Entry]] = []
    for name, s in summary.items():
        samples = None if s["setup_samples"] is None else str(s["setup_samples"])
        rows.append([name, samples, s.get("setup_seconds"), s["setup_mb"],
                     s["inference_seconds"], s["ratio"], s["inference_mb"]])  # fmt: skip
        if options.against:
            known = table("Table 14").rows.get(tuple(_PAPER.get(name, "").split()), (None, None))
            rows[-1] += map(printed_entry, known[:2])
    ours = [row for row, name in enumerate(summary) if name.startswith("NAC")]
    return Table(f"Means over {options.repeats} trials", columns, rows, ours)


def _notes(
    data: AnalysisData, work: Workload, records: Sequence[Mapping[str, Any]],
    problems: Mapping[str, str],
) -> list[str]:  # fmt: skip
    notes = [
        "Inference is over test samples in memory, so it does not include loading; every method "
        "runs the network itself. Set-up includes loading the training samples. It is without a "
        "search of hyperparameters. Deviations are those of the trials (population standard "
        "deviations). Memory is the peak beyond what was in use before, the largest of the trials, "
        f"in MB. Batches have {data.bench.study.batch_size} samples; device: "
        f"{data.bench.device.type}."
    ]
    if work.n_train < work.all_train:
        notes.append(
            f"Methods that look at all training data were given {work.n_train} of {work.all_train} "
            "training samples here; with all, their set-up takes longer in proportion."
        )
    disturbed = sum(record["disturbed"] for record in records)
    if disturbed:
        notes.append(
            f"{disturbed} of {len(records)} measurements were disturbed by other programs: the "
            "process waited for more than 30 % of the time."
        )
    return [*notes, *(f"{name} was left out: {why}" for name, why in problems.items())]
