"""Compare a fitted detector with simpler methods, and suggest what to use instead.

A detector is compared with NAC+ and cheap methods that do well in `docs/comparison.md`, GEN, NCI,
fDBD and KNN, on OOD validation data. Without such data, surrogates made from ID validation images
are used. They can show that settings do not suit a network, but not how well a method does on real
OOD data; every message says so.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Optional, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nac_openood.core import RULES
from nac_openood.core.layer_config import LayoutConfig
from nac_openood.core.metrics import Interval, auroc, auroc_intervals
from nac_openood.core.plus import MIN_CALIBRATION, NACPlus, gen
from nac_openood.core.posthoc import boundary_gaps, fdbd, knn, nci
from nac_openood.core.reading import BatchReadings, Reading, logits_in, not_finite
from nac_openood.core.rule import Rule
from nac_openood.detector.batches import batches
from nac_openood.detector.detector import NACDetector
from nac_openood.detector.readings import Readings, fit_rule
from nac_openood.errors import NACError
from nac_openood.network.auto import auto_layers
from nac_openood.network.head import Head, head_of
from nac_openood.network.inputs import Inputs, describe_value
from nac_openood.network.probe import read
from nac_openood.network.replica import kept_random_state
from nac_openood.search.loaders import SurrogateLoader, can_distort, few_of

#: A detector loses if the 99 % interval of the difference in AUROC lies above this.
MARGIN = 0.01
#: NAC+ is named in place of the best alternative if it is not worse by more than this.
_CLOSE = 0.01
#: Samples of each kind that are compared, at least and at most, and training samples.
_MIN_SAMPLES, _MAX_SAMPLES, _TRAIN = 20, 1000, 1000
#: A part of the score is useless if its AUROC is less than this and either nearly all ID samples
#: or this share of all samples have the same value.
_CHANCE, _SAME = 0.55, 0.9

#: K of KNN: 1 % of the fitting samples, at most 50 (as in OpenOOD).
_NEIGHBORS, _SHARE = 50, 100
#: The authors' weight of the features' size.
_NCI_ALPHA = 1e-4
#: All but GEN use at most this many fitting samples, evenly spaced.
_MAX_FITTED = 5000

#: Scores `[samples]` of readings; higher means more in-distribution.
Score = Callable[[Readings], Tensor]

NAC_TITLE, NAC_PLUS_TITLE = RULES["nac"][0], RULES["nac_plus"][0]
#: What the OOD samples are.
REAL, SURROGATE = "OOD validation data", "surrogates, not real OOD data"


class AlternativeLayers(NamedTuple):
    """Which of the layers that were read the alternatives can use.

    Args:
        head_input: the layer whose output is the input of the head; None if it was not read.
        early: the layers that NAC+ uses, each with the number that its activations are divided by
            to get means over positions; empty unless all of them were read.
        head_size: that number for the input of the head.
    """

    head_input: Optional[str] = None
    early: Mapping[str, float] = {}
    head_size: float = 1.0


_NO_LAYERS = AlternativeLayers()


@dataclass(frozen=True)
class Advice:
    """How a detector compares with simpler methods, and what to change.

    Args:
        method: the title of the detector, e.g. "NAC".
        against: what the OOD samples are, e.g. "surrogates, not real OOD data".
        n_id: number of ID samples that were compared.
        n_ood: number of OOD samples or surrogates.
        table: the AUROCs of the detector and the alternatives by title, best first, as fractions
            with 99 % intervals; empty if nothing could be compared.
        differences: how much higher the AUROCs of the alternatives are than the detector's.
        warnings: what is wrong and what to do about it.
        notes: what could not be compared, and why.
        seconds: how long it took.
    """

    method: str
    against: str
    n_id: int = 0
    n_ood: int = 0
    table: Mapping[str, Interval] = field(default_factory=dict)
    differences: Mapping[str, Interval] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = field(compare=False, default=0.0)

    def __str__(self) -> str:
        lines = []
        if self.table:
            lines = [
                f"{self.method} on {self.against}: {self.n_id} ID and {self.n_ood} OOD samples",
                f"{'':9}{'AUROC':>7}  {'99 % interval':16}difference (99 % interval)",
            ]
            for title, auroc in self.table.items():
                value, low, high = map(_percent, auroc)
                row = f"{title:7}{value:>7}  {f'{low} to {high}':16}"
                more = [f"{100 * x:+.1f}" for x in self.differences.get(title, ())]
                row = "  {}{} ({} to {})".format(row, *more) if more else f"> {row}".rstrip()
                lines.append(row)
            if not self.warnings:
                lines.append("No method is clearly more than 1 point ahead.")
        lines += [f"Warning: {text}." for text in self.warnings]
        return "\n".join([*lines, *(f"Note: {text}." for text in self.notes)])

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; AUROCs are fractions."""
        return {
            "against": self.against,
            "samples": [self.n_id, self.n_ood],
            "auroc": {title: auroc.value for title, auroc in self.table.items()},
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }


def advise(
    detector: NACDetector,
    id_val: Iterable[Any],
    *,
    train: Optional[Iterable[Any]] = None,
    ood_val: Optional[Iterable[Any]] = None,
    n_samples: int = 500,
    seed: int = 0,
    progress: Optional[bool] = None,
) -> Advice:
    """Compare a fitted detector with simpler methods, and report problems with its settings.

    Examples:
        >>> advice = nac_openood.advise(det, val_loader, train=train_loader)
        >>> print(advice)
        >>> advice.warnings

    Args:
        detector: a fitted detector of either rule.
        id_val: batches of ID validation data that were not used for fitting or training.
        train: batches of training data, of which 1,000 samples are read; None leaves out all
            methods but GEN.
        ood_val: batches of OOD validation data (never test data); None makes surrogates from the
            images of `id_val`. Without either, e.g. for tables and text, nothing is compared.
        n_samples: number of samples of each validation set to use.
        seed: random seed of the surrogates.
        progress: whether to show progress bars; None shows them on a terminal.
    """
    began = time.perf_counter()
    rule = detector._fitted()
    with kept_random_state():
        inside = few_of(id_val, n_samples)
        first = next(iter(batches(inside)), None)
        if first is None:
            raise NACError("the loader yielded no batch: pass ID validation data as `id_val`.")
        sample = first.data
        if ood_val is None and not can_distort(sample):
            title = rule.title or rule.name
            note = (
                f"{title} was not compared with other methods: surrogates can only be made from "
                f"square images, not from inputs of {describe_value(sample)}. To compare it, pass "
                "OOD validation data (`ood_val`)"
            )
            wrong = tuple(rule.saturated().values())
            return Advice(title, "nothing", warnings=wrong, notes=(note,))
        outside = (
            SurrogateLoader(inside, seed=seed) if ood_val is None else few_of(ood_val, n_samples)
        )
        against = SURROGATE if ood_val is None else REAL
        found, _ = read_and_advise(
            detector, inside, outside, train, against=against, progress=progress
        )
    return replace(found, seconds=time.perf_counter() - began)


def read_and_advise(
    detector: NACDetector,
    inside: Iterable[Any],
    outside: Iterable[Any],
    train: Optional[Iterable[Any]] = None,
    *,
    against: str,
    n_train: int = _TRAIN,
    progress: Optional[bool] = None,
) -> tuple[Advice, Readings]:
    """Compare on ID and OOD samples; returns the detector's readings of the OOD samples, too."""
    own = readings = [detector.read_loader(each, progress=progress) for each in (inside, outside)]
    sample = detector._reader.sample
    options: dict[str, Any] = {"own": own, "against": against}
    if train is not None and (found := reader_for(detector, sample)) is not None:
        reader, options["layers"] = found
        if (reader.rule, reader.layers) != (detector.rule, detector.layers):
            readings = [reader.read_loader(each, progress=progress) for each in (inside, outside)]
        fit = reader.read_loader(few_of(train, n_train), progress=progress)
        readings = [*readings, fit]
        options["weight"] = head_weight(reader.net, sample)
    return advise_on_readings(detector._fitted(), *readings, **options), own[1]


def advise_on_readings(
    rule: Rule,
    id_val: Readings,
    ood_val: Readings,
    fit: Optional[Readings] = None,
    *,
    layers: AlternativeLayers = _NO_LAYERS,
    weight: Optional[Tensor] = None,
    own: Optional[Sequence[Readings]] = None,
    against: str = REAL,
    searched: bool = False,
) -> Advice:
    """Like `advise`, without the network.

    Args:
        rule: reference NAC or NAC+, fitted.
        id_val: readings of ID validation samples.
        ood_val: readings of OOD samples or surrogates.
        fit: readings of training samples; None leaves out all alternatives but GEN.
        layers: which layers of these readings the alternatives can use.
        weight: the weights of the linear head, `[classes, D]`; None leaves out fDBD and NCI.
        own: `id_val` and `ood_val` with the readings that the rule needs; None uses those above.
        against: what the OOD samples are.
        searched: whether the rule's settings were searched on these samples.
    """
    began = time.perf_counter()
    title = rule.title or rule.name
    pair = [_some_rows(readings) for readings in (id_val, ood_val)]
    own_pair = pair if own is None else [_some_rows(readings) for readings in own]
    scores = {title: [rule.score(readings) for readings in own_pair]}
    for name, score in alternatives(fit, pair[0], layers, weight).items():
        scores.setdefault(name, [score(readings) for readings in pair])
    notes = []
    if searched:
        notes.append("the settings were searched on the same data, which flatters the detector")
    why = "there is no training data" if fit is None else "what it needs was not read"
    missing = sorted({"fDBD", "KNN", "NCI", NAC_PLUS_TITLE} - set(scores))
    notes += [f"{name} was not compared: {why}" for name in missing]
    table, differences = _aurocs(scores)
    if not table:
        least = f"{_MIN_SAMPLES} ID and {_MIN_SAMPLES} OOD samples"
        notes = [f"nothing was compared, which needs {least}"]
    wrong = _saturated(rule, own_pair, against)
    better = {name: found for name, found in differences.items() if found.low > MARGIN}
    if better:
        use = _better_method(title, table, better)
        if rule.name == "nac" and not searched:
            use += ", or search the settings"
        wrong.append(f"on {against}, {use}")
    sizes = pair[0].n_samples, pair[1].n_samples
    texts = tuple(wrong), tuple(notes)
    return Advice(title, against, *sizes, table, differences, *texts, time.perf_counter() - began)


def _some_rows(readings: Readings) -> Readings:
    """At most a thousand random samples, always the same ones."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randperm(readings.n_samples, generator=draw)[:_MAX_SAMPLES]
    return readings.rows(rows.sort().values)


def _aurocs(
    scores: Mapping[str, Sequence[Tensor]],
) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """AUROCs, best first, and differences to the first of `scores`; empty for few samples."""
    sides = [torch.stack([both[i].cpu().double() for both in scores.values()]) for i in (0, 1)]
    # a sample that overflows for one method is left out for all
    sides = [side[:, side.isfinite().all(dim=0)] for side in sides]
    if min(side.shape[1] for side in sides) < _MIN_SAMPLES:
        return {}, {}
    aurocs, differences = (dict(zip(scores, found)) for found in auroc_intervals(*sides))
    best_first = sorted(scores, key=lambda title: -aurocs[title].value)
    detector = next(iter(scores))
    others = [title for title in best_first if title != detector]
    return {t: aurocs[t] for t in best_first}, {t: differences[t] for t in others}


def _saturated(rule: Rule, pair: Sequence[Readings], against: str) -> list[str]:
    """Warnings about layers that cannot separate samples, judged by counts or by scores."""
    found = rule.saturated(pair[0])
    suspected = rule.saturated(pair[0], certain=False)
    parts = [rule.parts(readings) for readings in pair]
    for name in parts[0]:
        sides = [part[name][part[name].isfinite()].cpu() for part in parts]
        if name in found or not min(map(len, sides)):
            continue
        both = torch.cat(sides)
        same = int(both.unique(return_counts=True)[1].max()) / len(both)
        alone = float(auroc(*sides))
        if alone < _CHANCE and (name in suspected or same >= _SAME):
            what = "layer" if name in rule.layers else "part"
            why = suspected.get(name, f"{what} '{name}' cannot tell samples apart")
            found[name] = f"{why}; on {against}, its AUROC alone is {100 * alone:.1f}"
    return list(found.values())


def _better_method(
    title: str, table: Mapping[str, Interval], better: Mapping[str, Interval]
) -> str:
    """What to use instead of the method `title`; `better` are differences in AUROC, best first."""
    best, by = next(iter(better.items()))
    plus = better.get(NAC_PLUS_TITLE)
    use = best if plus is None or by.value - plus.value > _CLOSE else NAC_PLUS_TITLE
    instead = "rule='nac_plus'" if use == NAC_PLUS_TITLE else use
    if use != best:
        instead += f" ({_percent(table[use].value)})"
    return (
        f"{title} has AUROC {_percent(table[title].value)}, {best} "
        f"{_percent(table[best].value)} (99 % interval of the difference: {_percent(by.low)} to "
        f"{_percent(by.high)} points): use {instead}"
    )


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}"


# -- alternatives, scored on readings -------------------------------------------------------
#
# GEN needs the logits, which all readings have. KNN, fDBD and NCI need the input of the head, the
# last two its weights, too, and NAC+ the ends of the early stages. They can be scored if these
# layers were read; the published settings of ResNets and ViTs include them.


def alternative_layers(detector: NACDetector, x: Inputs) -> AlternativeLayers:
    """Find the layers of a detector that the alternatives can use, by running a few samples.

    Args:
        detector: the detector that makes the readings.
        x: a few samples.
    """
    try:
        found = auto_layers(detector.net, x)
    except Exception:  # a network may raise anything; then there are fewer alternatives
        return _NO_LAYERS
    names = {layer.path: name for name, layer in detector.locations.items()}
    head = names.get(found.head_input.path)
    early = [names.get(layer.path, "") for layer in found.early]
    sizes = _divisors(detector, x)
    read_early = {name: sizes[name] for name in early} if sizes.keys() >= set(early) else {}
    return AlternativeLayers(head, read_early, sizes.get(head or "", 1.0))


def reader_for(detector: NACDetector, x: Inputs) -> Optional[tuple[NACDetector, AlternativeLayers]]:
    """A detector of NAC+, which reads what the alternatives need, and its layers for them.

    None if no layers are found.

    Args:
        detector: the detector whose network is read.
        x: a few samples.
    """
    options: Any = {"fast": detector.fast, "autocast": detector.autocast}
    reader = NACDetector(detector.net, rule=NACPlus.name, **options)
    try:
        reader.prepare(x)
    except Exception:
        return None
    early = {name: 1.0 for name, layer in reader.layers.items() if not layer.head_input}
    return reader, AlternativeLayers([*reader.layers][-1], early)  # NAC+ reads means


def head_weight(net: nn.Module, x: Inputs) -> Optional[Tensor]:
    """The weights `[classes, D]` of a network's linear head on the CPU; None if it has none.

    Args:
        net: the network.
        x: a few samples.
    """
    try:
        return torch.from_numpy(Head(head_of(net, x)[1]).get_fc()[0])
    except Exception:  # a network may raise anything; then there is one alternative less
        return None


def _divisors(detector: NACDetector, x: Inputs) -> dict[str, float]:
    """By layer, the number that turns readings into means, if it is the same for all samples."""
    own = detector._reader.read(x)
    means = read(detector.net, x, detector.locations, gradients=(), mean=True)
    found = {}
    for name in means:
        size, mean = (r[name].activation.abs().double().sum(dim=1) for r in (own, means))
        divisor = float(size.sum() / mean.sum())
        if bool(((size - divisor * mean).abs() <= 1e-3 * size).all()):  # never for NaN
            found[name] = divisor
    return found


def alternatives(
    fit: Optional[Readings],
    id_val: Readings,
    layers: AlternativeLayers,
    weight: Optional[Tensor] = None,
) -> dict[str, Score]:
    """The alternatives that can be scored, by name.

    Args:
        fit: readings of training samples; None leaves out all but GEN.
        id_val: readings of ID validation samples, on which NAC+ is calibrated.
        layers: the layers that they use.
        weight: the weights of the linear head; None leaves out fDBD and NCI.
    """
    found: dict[str, Score] = {}
    if id_val.logits is not None:
        found["GEN"] = lambda readings: gen(logits_in(readings))
    if fit is None:
        return found
    if fit.n_samples > _MAX_FITTED:
        fit = fit.rows(torch.linspace(0, fit.n_samples - 1, _MAX_FITTED).long())
    if layers.head_input is not None:
        readable = weight if id_val.logits is not None else None
        found.update(_on_features(fit, layers.head_input, layers.head_size, readable))
    if layers.early and id_val.n_samples >= MIN_CALIBRATION:
        found[NAC_PLUS_TITLE] = _plus(fit, id_val, layers)
    return found


def _on_features(
    fit: Readings, layer: str, size: float, weight: Optional[Tensor]
) -> dict[str, Score]:
    """KNN, and with the weights of the head fDBD and NCI."""

    def features(readings: Readings) -> Tensor:
        return readings[layer].activation.float() / size

    known = features(fit)
    bank, k = F.normalize(known, dim=1), min(_NEIGHBORS, max(1, len(known) // _SHARE))
    found: dict[str, Score] = {"KNN": lambda r: knn(features(r), bank, k)}
    if weight is not None:
        w, mean = weight.to(known.device), known.mean(dim=0)
        gaps = boundary_gaps(w)
        found["fDBD"] = lambda r: fdbd(features(r), logits_in(r).float(), gaps, mean)
        found["NCI"] = lambda r: nci(features(r), logits_in(r).float(), w, mean, _NCI_ALPHA)
    return found


def _plus(fit: Readings, id_val: Readings, layers: AlternativeLayers) -> Score:
    # of the head's input, the scale makes no difference
    head = {} if layers.head_input in (None, *layers.early) else {str(layers.head_input): 1.0}
    divisors = {**layers.early, **head}

    def only_these(readings: Readings) -> BatchReadings:
        means = {n: Reading(readings[n].activation / by) for n, by in divisors.items()}
        return BatchReadings(logits_in(readings), means)

    def finite(readings: Readings) -> Readings:  # no rule can be fitted on NaN or Inf
        read = (readings[name] for name in divisors)
        return readings.rows(~not_finite(Reading(logits_in(readings)), *read))

    rule = NACPlus({name: LayoutConfig(head_input=name in head) for name in divisors})
    fit_rule(rule, map(only_these, finite(fit).batches()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about few samples, which the intervals show
        rule.calibrate(rule.parts(only_these(batch)) for batch in finite(id_val).batches())
    return lambda readings: rule.score(only_these(readings))
