"""Compare a fitted detector with simpler methods, and suggest what to use instead.

A detector is compared with MSP, energy, KNN and (if it is reference NAC) NAC+ on OOD validation
data. Without such data, surrogates made from ID validation images are used. They can show that
settings do not suit a network, but not how well a method does on real OOD data; every message says
so.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Iterable, Mapping, Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from nac_openood.core import RULES
from nac_openood.core.layer_config import LayoutConfig
from nac_openood.core.metrics import Aurocs, Interval, auroc
from nac_openood.core.plus import NACPlus
from nac_openood.core.pvalues import MIN_SAMPLES
from nac_openood.core.reading import BatchReadings, Reading, double, logits_in, not_finite
from nac_openood.core.rule import Rule, rule_named
from nac_openood.detector.batches import batches
from nac_openood.detector.detector import NACDetector
from nac_openood.detector.readings import Readings, fit_rule
from nac_openood.errors import NACError, NotFittedError
from nac_openood.network.architectures import Layer
from nac_openood.network.auto import AutoLayers, auto_layers
from nac_openood.network.inputs import Inputs, describe_value, rows
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

NAC_TITLE, NAC_PLUS_TITLE = RULES["nac"][0], RULES["nac_plus"][0]
#: What the OOD samples are.
REAL, SURROGATE = "OOD validation data", "surrogates, not real OOD data"


@dataclass(frozen=True)
class Compared:
    """The result of a method on the compared samples, in fractions.

    Args:
        auroc: its AUROC with a 99 % interval.
        difference: how much higher its AUROC is than the detector's; None for the detector itself.
    """

    auroc: Interval
    difference: Optional[Interval] = None

    def __str__(self) -> str:
        between = f"{_percent(self.auroc.low)} to {_percent(self.auroc.high)}"
        text = f"{_percent(self.auroc.value):>7}  {between:16}"
        if self.difference is None:
            return text.rstrip()
        value, low, high = (f"{100 * number:+.1f}" for number in self.difference)
        return f"{text}{value} ({low} to {high})"


@dataclass(frozen=True)
class Advice:
    """How a detector compares with simpler methods, and what to change.

    Args:
        method: the title of the detector, e.g. "NAC".
        against: what the OOD samples are, e.g. "surrogates, not real OOD data".
        n_id: number of ID samples that were compared.
        n_ood: number of OOD samples or surrogates.
        table: the detector and the alternatives by title, best first; empty if nothing could be
            compared.
        warnings: what is wrong and what to do about it.
        notes: what could not be compared, and why.
        seconds: how long it took.
    """

    method: str
    against: str
    n_id: int = 0
    n_ood: int = 0
    table: Mapping[str, Compared] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = field(compare=False, default=0.0)

    def __str__(self) -> str:
        lines = []
        if self.table:
            lines = [
                f"{self.method} on {self.against}: {self.n_id} ID and {self.n_ood} OOD samples",
                f"{'':9}{'AUROC':>7}  {'99 % interval':16}difference (99 % interval)",
                *(
                    f"{' ' if row.difference else '>'} {title:7}{row}"
                    for title, row in self.table.items()
                ),
            ]
            if not self.warnings:
                lines.append("No method is clearly more than 1 point ahead.")
        lines += [f"Warning: {text}." for text in self.warnings]
        return "\n".join([*lines, *(f"Note: {text}." for text in self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; AUROCs are fractions."""
        return {
            "against": self.against,
            "samples": [self.n_id, self.n_ood],
            "auroc": {title: row.auroc.value for title, row in self.table.items()},
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
        train: batches of training data, for KNN and NAC+, of which 1,000 samples are read; None
            leaves these two out.
        ood_val: batches of OOD validation data (never test data); None makes surrogates from the
            images of `id_val`. Without either, e.g. for tables and text, nothing is compared.
        n_samples: number of samples of each validation set to use.
        seed: random seed of the surrogates.
        progress: whether to show progress bars; None shows them on a terminal.
    """
    began = time.perf_counter()
    rule = detector.rule_
    if rule is None:
        raise NotFittedError("this NACDetector is not fitted: call fit before you ask for advice.")
    title = rule.title or rule.name
    with kept_random_state():
        inside = few_of(id_val, n_samples)
        sample: Optional[Inputs] = next((batch.data for batch in batches(inside)), None)
        if sample is None:
            raise NACError("the ID validation loader yielded no batch: nothing can be compared.")
        if ood_val is None and not can_distort(sample):
            note = (
                f"{title} was not compared with other methods: surrogates can only be made from "
                f"square images, not from batches of {describe_value(sample)}. To compare it, pass "
                "OOD validation data (`ood_val`)"
            )
            wrong = tuple(rule.saturated().values())
            return Advice(title, "nothing", warnings=wrong, notes=(note,))
        outside = (
            SurrogateLoader(inside, seed=seed) if ood_val is None else few_of(ood_val, n_samples)
        )
        reader, layers = reader_for(detector, sample) if train is not None else (None, None)
        own = _read(detector, inside, outside, progress)
        pair, fit = own, None
        if reader is not None and train is not None:
            pair = _read(reader, inside, outside, progress)
            fit = reader.read_loader(few_of(train, _TRAIN), progress=progress)
    found = advise_on_readings(
        rule, *pair, fit, layers=layers, own=own, against=REAL if ood_val is not None else SURROGATE
    )
    return replace(found, seconds=time.perf_counter() - began)


def _read(
    reader: NACDetector, inside: Iterable[Any], outside: Iterable[Any], progress: Optional[bool]
) -> tuple[Readings, Readings]:
    return (
        reader.read_loader(inside, progress=progress),
        reader.read_loader(outside, progress=progress),
    )


def advise_on_readings(
    rule: Rule,
    id_val: Readings,
    ood_val: Readings,
    fit: Optional[Readings] = None,
    *,
    layers: Optional[AlternativeLayers] = None,
    own: Optional[tuple[Readings, Readings]] = None,
    against: str = REAL,
    searched: bool = False,
) -> Advice:
    """Like `advise`, without the network.

    Args:
        rule: reference NAC or NAC+, fitted.
        id_val: readings of ID validation samples.
        ood_val: readings of OOD samples or surrogates.
        fit: readings of training samples; None leaves out KNN and NAC+.
        layers: which layers of these readings the alternatives can use; None for none.
        own: `id_val` and `ood_val` with the readings that the rule needs; None uses those above.
        against: what the OOD samples are.
        searched: whether the rule's settings were searched on these samples.
    """
    began = time.perf_counter()
    title = rule.title or rule.name
    pair = _some_rows(id_val), _some_rows(ood_val)
    own_pair = pair if own is None else (_some_rows(own[0]), _some_rows(own[1]))
    wrong, notes = _saturated(rule, *own_pair, against), []
    n_id, n_ood = (readings.n_samples for readings in pair)
    if searched:
        notes.append("the settings were searched on the same data, which flatters the detector")
    others = alternatives(fit, pair[0], layers or AlternativeLayers(), plus=title != NAC_PLUS_TITLE)
    why = "there is no training data" if fit is None else "layers that it needs were not read"
    missing = sorted({"KNN", NAC_PLUS_TITLE} - {title, *others})
    notes += [f"{name} was not compared: {why}" for name in missing]
    scores = {title: [rule.score(readings) for readings in own_pair]}
    scores.update({name: list(map(score, pair)) for name, score in others.items()})
    table = _compared(scores)
    if not table:
        least = f"{_MIN_SAMPLES} ID and {_MIN_SAMPLES} OOD samples"
        notes = [f"nothing was compared, which needs {least}"]
    better = _better_method(title, table, against, searched=searched)
    wrong += [] if better is None else [better]
    seconds = time.perf_counter() - began
    return Advice(title, against, n_id, n_ood, table, tuple(wrong), tuple(notes), seconds)


def _some_rows(readings: Readings) -> Readings:
    """At most a thousand random samples, always the same ones."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randperm(readings.n_samples, generator=draw)[:_MAX_SAMPLES]
    return readings.rows(rows.sort().values)


def _compared(scores: Mapping[str, list[Tensor]]) -> dict[str, Compared]:
    """AUROCs, best first, if there are enough samples; the first of `scores` is the detector's."""
    sides = [torch.stack([both[i].cpu().double() for both in scores.values()]) for i in (0, 1)]
    # a sample that overflows for one method is left out for all
    sides = [side[:, side.isfinite().all(dim=0)] for side in sides]
    if min(side.shape[1] for side in sides) < _MIN_SAMPLES:
        return {}
    found = Aurocs(*sides)
    rows = {
        title: Compared(found.interval(i), found.difference(i, 0) if i else None)
        for i, title in enumerate(scores)
    }
    return dict(sorted(rows.items(), key=lambda row: -row[1].auroc.value))


def _saturated(rule: Rule, inside: Readings, outside: Readings, against: str) -> list[str]:
    """Warnings about layers that cannot separate samples, judged by counts or by scores."""
    found = rule.saturated(inside)
    suspected = rule.saturated(inside, certain=False)
    parts = [rule.parts(readings) for readings in (inside, outside)]
    for name in parts[0]:
        first, second = (part[name][part[name].isfinite()].cpu() for part in parts)
        if name in found or not min(len(first), len(second)):
            continue
        both = torch.cat([first, second])
        same = int(both.unique(return_counts=True)[1].max()) / len(both)
        alone = float(auroc(first, second))
        where = f"on {against}, its AUROC alone is {100 * alone:.1f}"
        if alone >= _CHANCE:
            continue
        if name in suspected:
            found[name] = f"{suspected[name]}; {where}"
        elif same >= _SAME:
            what = "layer" if name in rule.layers else "part"
            found[name] = f"{what} '{name}' cannot tell samples apart: {where}"
    return list(found.values())


def _better_method(
    title: str, table: Mapping[str, Compared], against: str, *, searched: bool
) -> Optional[str]:
    """A warning if a method is better than the detector by more than chance explains.

    Args:
        title: the title of the detector.
        table: the detector and the alternatives, best first.
        against: what the OOD samples are.
        searched: whether the detector's settings were searched.
    """
    better = {
        name: row.difference
        for name, row in table.items()
        if row.difference and row.difference.low > MARGIN
    }
    if not better:
        return None
    best, by = next(iter(better.items()))
    plus = better.get(NAC_PLUS_TITLE)
    use = NAC_PLUS_TITLE if plus is not None and by.value - plus.value <= _CLOSE else best
    instead = "rule='nac_plus'" if use == NAC_PLUS_TITLE else use
    if use != best:
        instead += f" ({_percent(table[use].auroc.value)})"
    if title == NAC_TITLE and not searched:
        instead += ", or search the settings"
    return (
        f"on {against}, {title} has AUROC {_percent(table[title].auroc.value)}, {best} "
        f"{_percent(table[best].auroc.value)} (99 % interval of the difference: "
        f"{_percent(by.low)} to {_percent(by.high)} points): use {instead}"
    )


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}"


# -- alternatives -----


def msp(logits: Tensor) -> Tensor:
    """The largest probability (Hendrycks & Gimpel, ICLR 2017), float64 `[batch]`."""
    return double(logits).softmax(dim=1).amax(dim=1)


def energy(logits: Tensor) -> Tensor:
    """The negative free energy (Liu et al., NeurIPS 2020), float64 `[batch]`."""
    return double(logits).logsumexp(dim=1)


#: K of KNN: 1 % of the fitting samples, at most 50 (as in OpenOOD).
_NEIGHBORS, _SHARE = 50, 100
#: KNN and NAC+ use at most this many fitting samples, evenly spaced.
_MAX_FITTED = 5000
#: Number of samples that are run to find the layers.
_PROBED = 3

#: Scores `[samples]` of readings; higher means more in-distribution.
Score = Callable[[Readings], Tensor]


@dataclass(frozen=True)
class AlternativeLayers:
    """Which of the layers that were read the alternatives can use.

    Args:
        head_input: the layer whose output is the input of the head; None if it was not read.
        early: the layers that NAC+ uses, each with the number that its activations are divided by
            to get means over positions; empty unless all of them were read.
    """

    head_input: Optional[str] = None
    early: Mapping[str, float] = field(default_factory=dict)


def alternative_layers(detector: NACDetector, x: Inputs) -> AlternativeLayers:
    """Find the layers of a detector that the alternatives can use, by running a few samples.

    Args:
        detector: the detector that makes the readings.
        x: a batch; three samples are used.
    """
    found = _automatic(detector, x)
    if found is None:
        return AlternativeLayers()
    names = {layer.path: name for name, layer in detector.locations.items()}
    located = {
        names[layer.path]: detector.locations[names[layer.path]]
        for layer in found.early
        if layer.path in names
    }
    all_read = len(located) == len(found.early)
    early = _positions(detector, rows(x, slice(_PROBED)), located) if all_read else {}
    return AlternativeLayers(names.get(found.head_input.path), early)


def reader_for(detector: NACDetector, x: Inputs) -> tuple[Optional[NACDetector], AlternativeLayers]:
    """A detector that reads what the alternatives need in a forward pass; None if that fails.

    Args:
        detector: the detector whose network is read.
        x: a batch; three samples are used.
    """
    found = _automatic(detector, x)
    if found is None:
        return None, AlternativeLayers()
    layers = {layer.path: LayoutConfig(layer.layout) for layer in (*found.early, found.head_input)}
    reader = NACDetector(
        detector.net, layers, rule=NACPlus.name, fast=detector.fast, autocast=detector.autocast
    )
    early = dict.fromkeys((layer.path for layer in found.early), 1.0)
    return reader, AlternativeLayers(found.head_input.path, early)


def _automatic(detector: NACDetector, x: Inputs) -> Optional[AutoLayers]:
    try:
        return auto_layers(detector.net, rows(x, slice(_PROBED)))
    except Exception:  # a network may raise anything; then there are fewer alternatives
        return None


def _positions(detector: NACDetector, x: Inputs, located: Mapping[str, Layer]) -> dict[str, float]:
    """The number of positions that each layer is summed over; {} if it differs by sample."""
    if rule_named(detector.rule)(detector.layers).needs.mean:
        return dict.fromkeys(located, 1.0)
    sums, means = (
        read(detector.net, x, located, gradients=False, mean=mean) for mean in (False, True)
    )
    found = {}
    for name in located:
        size, mean = (_size(readings[name].activation) for readings in (sums, means))
        found[name] = float(size.sum() / mean.sum())
        if not bool(((size - found[name] * mean).abs() <= 1e-3 * size).all()):
            return {}  # NaN ends here, too
    return found


def _size(activation: Tensor) -> Tensor:
    return activation.abs().double().sum(dim=1)


def alternatives(
    fit: Optional[Readings], id_val: Readings, layers: AlternativeLayers, *, plus: bool = True
) -> dict[str, Score]:
    """The alternatives that can be scored, by name.

    Args:
        fit: readings of training samples, for KNN and NAC+; None leaves these out.
        id_val: readings of ID validation samples, on which NAC+ is calibrated.
        layers: the layers that they use.
        plus: whether to include NAC+.
    """
    found: dict[str, Score] = {}
    if fit is not None and fit.n_samples > _MAX_FITTED:
        fit = fit.rows(torch.linspace(0, fit.n_samples - 1, _MAX_FITTED).long())
    if fit is not None and layers.early and plus and id_val.n_samples >= MIN_SAMPLES:
        found[NACPlus.title] = _plus(fit, id_val, layers.early)
    if id_val.logits is not None:
        found["energy"] = lambda readings: energy(logits_in(readings))
        found["MSP"] = lambda readings: msp(logits_in(readings))
    if fit is not None and layers.head_input is not None:
        found["KNN"] = _knn(fit[layers.head_input].activation, layers.head_input)
    return found


def _knn(fitted: Tensor, layer: str) -> Score:
    """Similarity to the K-th nearest fitting sample; features have unit length."""
    bank = F.normalize(fitted.float(), dim=1)
    k = min(_NEIGHBORS, max(1, len(bank) // _SHARE))

    def score(readings: Readings) -> Tensor:
        features = F.normalize(readings[layer].activation.float(), dim=1)
        parts = [(part @ bank.t()).topk(k, dim=1).values[:, -1] for part in features.split(1000)]
        return torch.cat(parts).double()

    return score


def _finite(readings: Readings, layers: Iterable[str]) -> Readings:
    """Drop samples with NaN or Inf, which no rule can be fitted on."""
    broken = not_finite(Reading(logits_in(readings)), *(readings[name] for name in layers))
    return readings.rows(~broken) if broken.any() else readings


def _plus(fit: Readings, id_val: Readings, early: Mapping[str, float]) -> Score:
    def only_early(readings: Readings) -> BatchReadings:
        layers = {n: Reading(readings[n].activation / by) for n, by in early.items()}
        return BatchReadings(logits_in(readings), layers)

    fit, id_val = (_finite(readings, early) for readings in (fit, id_val))
    rule = NACPlus({name: LayoutConfig() for name in early})
    fit_rule(rule, map(only_early, fit.batches()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about few samples, which the intervals show
        rule.calibrate(rule.parts(only_early(batch)) for batch in id_val.batches())
    return lambda readings: rule.score(only_early(readings))
