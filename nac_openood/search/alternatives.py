"""Alternatives to a detector, scored on readings: MSP, energy, KNN and NAC+.

MSP and energy need the logits, which all readings have. KNN needs the input of the head, and NAC+
the ends of the early stages. They can be scored if these layers were read; the published settings
of ResNets and ViTs include them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Callable, Iterable, Mapping, Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from nac_openood.core.layer_config import LayoutConfig
from nac_openood.core.plus import NACPlus
from nac_openood.core.pvalues import MIN_SAMPLES
from nac_openood.core.reading import Probed, Reading, logits_in, not_finite
from nac_openood.core.rules import rule_named
from nac_openood.core.tensors import energy, msp
from nac_openood.detector.detector import NACDetector
from nac_openood.detector.readings import Readings, fit_rule
from nac_openood.network.architectures import Layer
from nac_openood.network.auto import AutoLayers, auto_layers
from nac_openood.network.inputs import Inputs, rows
from nac_openood.network.probe import read

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
    def only_early(readings: Readings) -> Probed:
        layers = {n: Reading(readings[n].activation / by) for n, by in early.items()}
        return Probed(logits_in(readings), layers)

    fit, id_val = (_finite(readings, early) for readings in (fit, id_val))
    rule = NACPlus({name: LayoutConfig() for name in early})
    fit_rule(rule, map(only_early, fit.batches()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about few samples, which the intervals show
        rule.calibrate(rule.parts(only_early(batch)) for batch in id_val.batches())
    return lambda readings: rule.score(only_early(readings))
