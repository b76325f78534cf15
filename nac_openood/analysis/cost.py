"""Time and memory of setting up and scoring, of NAC and other methods (Table 14).

Every method runs the network itself, as if it were used alone.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

from torch import nn

from nac_openood.analysis import PLUS
from nac_openood.analysis.data import AnalysisData, Options
from nac_openood.analysis.finding import Finding, printed_entry
from nac_openood.benchmark.methods.backends import scorers
from nac_openood.benchmark.methods.scorer import MethodInputs, Scorer
from nac_openood.benchmark.methods.table import Method, chosen_methods
from nac_openood.benchmark.paper.published import table
from nac_openood.benchmark.run.cost import Meter
from nac_openood.benchmark.run.results import Value
from nac_openood.core import RULES
from nac_openood.detector.batches import Batch, bar, batches
from nac_openood.detector.config import NACConfig, preset_for
from nac_openood.detector.detector import NACDetector
from nac_openood.errors import error_text
from nac_openood.network.head import Head, head_of, with_features
from nac_openood.network.probe import classify
from nac_openood.search.loaders import few_of
from nac_openood.tables import BarGroups, Column, Entry, Table, text_columns

FORWARD = "Forward pass"
_BASELINES = ("msp", "gen", "vim", "she")
_PAPER = {"GEN": "gen none", "VIM": "vim none", "SHE": "she none",
          "NAC, 1 layer": "nac layer4", "NAC, 2 layers": "nac layer4+layer3",
          "NAC, 3 layers": "nac layer4+layer3+layer2"}  # fmt: skip


class Runner(NamedTuple):
    """A method, on how many samples it is set up (None if on none), and how to run it."""

    name: str
    samples: Optional[int]
    set_up: Callable[[], Any]
    score: Callable[[Sequence[Batch]], Any]


def cost(data: AnalysisData, options: Options) -> Finding:
    """Seconds and megabytes of every method, over several trials."""
    inputs, test = workload(data, options.most_samples)
    runners, problems = method_runners(data, inputs, test[0], options)
    trials: dict[str, list[dict[str, Any]]] = {}
    for runner in runners:  # warm up: the first batches take longer than all others
        try:
            runner.set_up()
            runner.score(test[:1])
            trials[runner.name] = []
        except Exception as error:  # third-party methods may raise anything
            problems[runner.name] = error_text(error)
    # trial by trial, so that other programs on the machine disturb all methods alike
    for _ in bar(range(options.repeats), "trials", options.progress):
        for runner in runners:
            if runner.name in trials:
                trial = _trial(data, runner, test)
                trials[runner.name].append(trial)
                plain = trials[FORWARD][-1]["inference_seconds"]
                trial["ratio"] = trial["inference_seconds"] / plain
    summary = {name: _summary(found) for name, found in trials.items()}
    ratios = {name: found["ratio"].mean for name, found in summary.items()}
    listed = "; ".join(f"{n} {value:.1f}" for n, value in ratios.items() if n != FORWARD)
    notes = [
        "Every method runs the network itself. Inference is over test samples in memory; set-up "
        "includes loading the training samples, but no search. Mean \u00b1 sample standard "
        "deviation over trials; memory is the largest peak beyond what was in use before, in MB. "
        f"Batches of {test[0].size} samples; device: {data.run.device.type}."
    ]
    n_train, n_all = _size(inputs.train), len(data.run.samples["train"])
    if n_train < n_all:
        notes.append(f"Set-up used {n_train} of {n_all} training samples; with all, it is slower.")
    figure = BarGroups(
        "ratio", "Inference time", "times the seconds of a plain forward pass (lower is better)",
        ["inference"], [(name, [value]) for name, value in ratios.items()], end=1.0,
        ours=[name for name in summary if name.startswith("NAC")],
    )  # fmt: skip
    return Finding(
        "cost", "Time and memory",
        f"Scoring time as a multiple of a plain forward pass: {listed}.",
        [_table(summary, sum(batch.size for batch in test), options)], [figure],
        [{"method": m, "trial": n, **t} for m, own in trials.items() for n, t in enumerate(own)],
        {"summary": summary},
        [*notes, *(f"{name} was left out: {why}" for name, why in problems.items())],
    )  # fmt: skip


def workload(data: AnalysisData, most: Optional[int] = None) -> tuple[MethodInputs, list[Batch]]:
    """The fitting data, and batches of ID test samples in memory; at most `most` samples each."""
    inputs = replace(data.run.inputs("network"), search=False, ood_val=None, progress=False)
    test: Iterable[Any] = data.run.study.scored["test"].loader()
    if most is not None:
        inputs, test = replace(inputs, train=few_of(inputs.train, most)), few_of(test, most)
    return inputs, list(batches(test))


def _size(loader: Any) -> int:
    return len(loader.dataset)


def method_runners(
    data: AnalysisData, inputs: MethodInputs, batch: Batch, options: Options
) -> tuple[list[Runner], dict[str, str]]:
    """A forward pass, baselines, NAC with one to all layers, and NAC+; errors of other methods."""
    net, n_train = inputs.net, _size(inputs.train)
    rows = [row for row in chosen_methods(options.methods or _BASELINES) if row.rule is None]
    make = scorers(rows, options.backend, say=options.say)

    def forward(test: Sequence[Batch]) -> None:
        for each in test:
            classify(net, each.data)

    found, problems = [Runner(FORWARD, None, lambda: None, forward)], {}
    for row in rows:
        try:
            found.append(_baseline(row, make(row, data.run.checkpoint), inputs, batch))
        except Exception as error:  # third-party methods may raise anything
            problems[row.title] = error_text(error)

    def own(title: str, config: NACConfig, n_val: int = 0) -> Runner:
        """A detector of this package, calibrated on `n_val` ID samples unless that is 0."""
        detector = NACDetector(net, config.layer_choice, rule=config.rule)
        n_fit = min(config.n_samples or n_train, n_train)

        def set_up() -> None:
            detector.fit(inputs.train, n_fit, progress=False)
            if n_val:
                detector.calibrate(inputs.id_val, progress=False)

        return Runner(title, n_val + n_fit, set_up, partial(detector.score_loader, progress=False))

    rule, n_val = data.config.rule, len(data.run.samples["id_val"])
    for n in range(1, len(data.early_layers) + 1):
        left_out = data.early_layers[n:]
        layers = {name: data.settings[name] for name in data.layers if name not in left_out}
        config = NACConfig(layers, n_samples=data.config.n_samples, rule=rule)
        title = f"{RULES[rule][0]}, {n} layer{'s' if n > 1 else ''}"
        found.append(own(title, config, n_val if rule == PLUS else 0))
    if rule == PLUS:
        return found, problems
    plus = preset_for(net, data.id_name, "nac_plus")
    return [*found, own("NAC+", plus, n_val)], problems


def _baseline(row: Method, scorer: Scorer, inputs: MethodInputs, batch: Batch) -> Runner:
    """A baseline that computes the features it needs itself."""
    n_read = _size(inputs.train) if row.uses_train else 0
    convert: Callable[[Any], Any] = iter
    if row.needs == "features":
        head = head_of(inputs.net, batch.data)[1]
        convert = partial(_Features, inputs.net, head)
        train, id_val = convert(inputs.train), convert(inputs.id_val)
        inputs = replace(inputs, net=Head(head), train=train, id_val=id_val)
    set_up = partial(scorer.setup, inputs)
    return Runner(row.title, n_read, set_up, lambda test: scorer.score(convert(test)))


class _Features:
    """A loader of features that are computed while it is read."""

    def __init__(self, net: nn.Module, head: nn.Linear, loader: Any) -> None:
        self._net, self._head, self._loader = net, head, loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in batches(self._loader):
            features = with_features(self._net, batch.data, self._head).features
            yield {"data": features, "label": batch.labels()}


def _trial(data: AnalysisData, runner: Runner, test: Sequence[Batch]) -> dict[str, Any]:
    """Time and memory of setting up and scoring once; None for a method without a setup."""
    found: dict[str, Any] = {"setup_samples": runner.samples}
    for name, run in (("setup", runner.set_up), ("inference", partial(runner.score, test))):
        # memory freed by an earlier method may still belong to the process, and hide the peak
        gc.collect()
        with suppress(OSError, AttributeError):  # only the C library of Linux can do this
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        with Meter(data.run.device) as meter:
            run()
        counts = name == "inference" or runner.samples is not None
        found[f"{name}_seconds"] = meter.seconds if counts else None
        found[f"{name}_mb"] = meter.peak_mb if counts else None
    return found


def _summary(trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means and standard deviations over trials; memory is the largest of the trials."""
    known = {key: [t[key] for t in trials if t[key] is not None] for key in trials[0]}
    times = ("setup_seconds", "inference_seconds", "ratio")
    return {
        **{key: Value.of(known[key]) for key in times if known[key]},
        **{key: max(known[key], default=None) for key in ("setup_mb", "inference_mb")},
        "setup_samples": trials[0]["setup_samples"],
    }


def _table(summary: Mapping[str, Mapping[str, Any]], n_test: int, options: Options) -> Table:
    heads = {"Set-up": ("seconds", "MB"),
             f"Inference, {n_test} samples": ("seconds", "x forward", "MB")}  # fmt: skip
    if options.against:
        heads["Paper, Table 14: imagenet with resnet50"] = ("set-up s", "inference s")
    columns = [*text_columns("Method"), Column("samples", "Set-up")]
    columns += [Column(t, above, "lower") for above, titles in heads.items() for t in titles]
    rows: list[list[Entry]] = []
    for name, s in summary.items():
        samples = None if s["setup_samples"] is None else str(s["setup_samples"])
        rows.append([name, samples, s.get("setup_seconds"), s["setup_mb"],
                     s["inference_seconds"], s["ratio"], s["inference_mb"]])  # fmt: skip
        if options.against:
            printed = table("Table 14").rows.get(tuple(_PAPER.get(name, "").split()), (None, None))
            rows[-1] += map(printed_entry, printed[:2])
    ours = [row for row, name in enumerate(summary) if name.startswith("NAC")]
    return Table(f"Means over {options.repeats} trials", columns, rows, ours)
