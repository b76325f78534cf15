"""NAC+: evidence of early layers and of the logits, fused as p-values, from forward passes only.

Early and middle layers detect far-OOD inputs by how unusual their activations are, each neuron
alone (coverage) and all at once (distance); the logits detect near-OOD inputs. `docs/nac_plus.md`
has the formulas and measurements.
"""

from __future__ import annotations

import warnings
from typing import Any, Iterable, Mapping, Optional, Sequence

import torch
from torch import Tensor

from nac_openood.core.held_out import HeldOut
from nac_openood.core.layer_config import LayoutConfig, finite_number, refuse_unknown
from nac_openood.core.plus_layer import LayerEvidence
from nac_openood.core.pvalues import PValues
from nac_openood.core.reading import Probed, Reading, logits_in, not_finite
from nac_openood.core.rule import Needs, Rule, stored_layers
from nac_openood.core.rules import RULES
from nac_openood.core.tensors import double, gen, stored_values
from nac_openood.errors import NACError, NotFittedError

#: Far from where scores become infinite.
_MAX_WEIGHT = 1e6
#: P-values of fewer calibration samples are coarse.
_ENOUGH_SAMPLES = 100
#: The prefix of the parts of the calibration data in a file.
_CALIBRATION = "calibration/"
#: The names of the logits among the parts of a score, and of the sum of all others.
LOGITS, EARLY = "logits", "early"


class NACPlus(Rule):
    """Coverage and distance of the activations of some layers and GEN of the logits, as p-values.

    Args:
        layers: settings by layer name: the last block of every stage but the last.
        logit_weight: the weight of the logits, relative to all layers together.
        softness: the p-value below which the layers count.
    """

    name, title = "nac_plus", RULES["nac_plus"].title
    needs_calibration = True

    def __init__(
        self,
        layers: Mapping[str, LayoutConfig],
        *,
        logit_weight: float = 2.0,
        softness: float = 0.2,
    ) -> None:
        super().__init__(layers)
        self.logit_weight = finite_number("logit_weight", logit_weight, _MAX_WEIGHT)
        self.softness = finite_number("softness", softness, 1.0)
        self.calibrated = False
        self.evidence: dict[str, LayerEvidence] = {}
        self.held_out = HeldOut()
        self._fusion: Optional[Fusion] = None
        self._before = 0  # samples of the training set that other shards count

    @property
    def needs(self) -> Needs:
        """Logits, and activations averaged over positions; no gradients."""
        return Needs(tuple(self.layers), logits=True, mean=True)

    @property
    def n_samples(self) -> int:
        """How many samples were counted or held out."""
        counted = min((e.n_samples for e in self.evidence.values()), default=0)
        return counted + self.held_out.n_samples

    # -- fitting ---------------------------------------------------------------------------

    def update(self, readings: Mapping[str, Reading], label: Optional[Tensor] = None) -> None:
        """Count a batch, and hold out some samples of it."""
        checked = self.checked(readings)
        self.count_broken(readings, checked)
        batch = Probed(logits_in(readings), checked)
        self._count(self.held_out.take(batch, self.n_samples + self._before))

    def start_at(self, index: int) -> None:
        """Set the index of the next training sample; see `nac_openood.core.held_out`."""
        self._before = index - self.n_samples

    def _count(self, batches: Iterable[Mapping[str, Reading]]) -> None:
        for batch in batches:
            for name, (activation, _) in batch.items():
                if name not in self.evidence:
                    neurons = activation.shape[1]
                    self.evidence[name] = LayerEvidence.empty(neurons, activation.device)
                self.evidence[name].update(activation)
            self._fusion, self.calibrated = None, False

    # -- calibration -----------------------------------------------------------------------

    def calibrate(self, parts: Iterable[Mapping[str, Tensor]]) -> Tensor:
        """As in `Rule`; first counts the held-out training samples, which are needed no more."""
        if self.held_out.readings is not None:
            self._count([self.held_out.readings])
            self.held_out = HeldOut()
        return super().calibrate(parts)

    def _calibrate(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Each sample is calibrated on the others, so that scores are those of new data."""
        fusion = self._fusion = self._fuse(parts)
        self.calibrated = True
        n = len(fusion.scores)
        if n < _ENOUGH_SAMPLES:
            warnings.warn(
                f"calibrated on {n} samples only: p-values are coarse. Use {_ENOUGH_SAMPLES} or "
                "more.",
                UserWarning,
                stacklevel=4,
            )
        return fusion.scores

    def _fuse(self, parts: Mapping[str, Tensor]) -> Fusion:
        return Fusion(parts, logit_weight=self.logit_weight, softness=self.softness)

    def fusion(self) -> Fusion:
        """The fitted `Fusion`; without `calibrate`, it uses held-out training samples and warns."""
        if self._fusion is None:
            if self.held_out.readings is None:
                raise NotFittedError("this rule has no p-values yet: call calibrate(loader) first.")
            warnings.warn(
                "NAC+ was not calibrated: its p-values are based on held-out training data, which "
                "the network fits better than new data. Call calibrate(loader) with ID validation "
                "data.",
                UserWarning,
                stacklevel=4,
            )
            self._fusion = self._fuse(self.parts(self.held_out.readings))
        return self._fusion

    def held_out_scores(self) -> Optional[Tensor]:
        """Scores of the held-out training samples; None after `calibrate`."""
        return None if self.held_out.readings is None else self.fusion().scores

    # -- scoring ---------------------------------------------------------------------------

    def parts(self, readings: Mapping[str, Reading]) -> dict[str, Tensor]:
        """Coverage and distance by layer, GEN of the logits, float64 `[batch]` each."""
        self.check()
        scores = {}
        checked = self.checked(readings)
        for name, (activation, _) in checked.items():
            evidence = self._evidence(name)
            scores[name] = evidence.coverage.score(activation)
            if evidence.gaussian is not None:
                scores[distance_of(name)] = evidence.gaussian.score(activation)
        logits = logits_in(readings)
        scores[LOGITS] = gen(logits)
        broken = not_finite(Reading(logits), *checked.values())
        return {
            name: score.masked_fill(broken.to(score.device), float("nan"))
            for name, score in scores.items()
        }

    def combine(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The score of `Fusion`, float64 `[batch]`."""
        return self.fusion().score(parts)

    def contributions(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """How much the logits and each layer, by coverage and distance, add to the score."""
        added = self.fusion().contributions(parts)
        layers = {
            name: added[name] + added.get(distance_of(name), torch.zeros_like(added[name]))
            for name in self.layers
        }
        return {**layers, LOGITS: added[LOGITS]}

    def neurons(self, readings: Mapping[str, Reading]) -> dict[str, Tensor]:
        """Log coverage of every neuron by layer, `[batch, neurons]` each; 0 is fully covered."""
        return {n: self._evidence(n).coverage.neurons(readings[n].activation) for n in self.layers}

    def _evidence(self, name: str) -> LayerEvidence:
        if name not in self.evidence or not self.evidence[name].n_samples:
            raise NotFittedError("nothing was counted: fit on more samples first.")
        return self.evidence[name]

    # -- shards and files ------------------------------------------------------------------

    def sums(self) -> dict[str, Tensor]:
        """Counts and moments by layer, and the numbers of samples with NaN or Inf."""
        evidence = {
            f"{layer}/{name}": tensor
            for layer, evidence in self.evidence.items()
            for name, tensor in evidence.sums().items()
        }
        return {**self.state, **evidence}

    def set_sums(self, sums: Mapping[str, Tensor]) -> None:
        """Replace counts and moments by sums over shards; calibrate again afterwards."""
        own = {layer: _with_prefix(f"{layer}/", sums) for layer in self.layers}
        self.evidence = {
            layer: LayerEvidence.of_sums(found) for layer, found in own.items() if found
        }
        self.state = {name: tensor for name, tensor in sums.items() if name.startswith("broken/")}
        self._fusion, self.calibrated = None, False

    def kept_samples(self) -> dict[str, Tensor]:
        """The held-out samples."""
        return self.held_out.tensors

    def set_kept_samples(self, shards: Sequence[Mapping[str, Tensor]]) -> None:
        """Join the held-out samples of several shards.

        The order of shards does not matter. The result is that of one pass if each sample had its
        index (`start_at`). Once calibrated, indices make no difference.
        """
        self.held_out, self._before = HeldOut(), 0
        for samples in shards:
            self._count(self.held_out.merge(HeldOut.restore(samples, self.layers).tensors))

    def tensors(self) -> dict[str, Tensor]:
        """Evidence by layer, the parts of the calibration data, held-out samples."""
        layers = {
            f"layer/{layer}/{name}": tensor
            for layer, evidence in self.evidence.items()
            for name, tensor in evidence.tensors().items()
        }
        parts = {} if self._fusion is None else self._fusion.calibration
        calibration = {f"{_CALIBRATION}{name}": part for name, part in parts.items()}
        return {**layers, **calibration, **self.held_out.tensors}

    def settings(self) -> dict[str, Any]:
        """The settings of the rule and of its layers."""
        return {
            **super().settings(),
            "logit_weight": self.logit_weight,
            "softness": self.softness,
            "calibrated": self.calibrated,
        }

    @classmethod
    def restore(cls, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> NACPlus:
        """Restore a rule from its `settings` and `tensors`."""
        layers = stored_layers(settings, LayoutConfig)
        numbers: Any = {name: settings.get(name) for name in ("logit_weight", "softness")}
        rule = cls(layers, **numbers)
        for name in layers:
            try:
                rule.evidence[name] = LayerEvidence.restore(_with_prefix(f"layer/{name}/", tensors))
            except NACError as error:
                raise NACError(f"layer '{name}': {error}") from error
        rule._restore_calibration(settings.get("calibrated"), _with_prefix(_CALIBRATION, tensors))
        rule.held_out = HeldOut.restore(tensors, layers)
        checked = (_CALIBRATION, *(f"layer/{name}/" for name in layers))
        others = {name: t for name, t in tensors.items() if not name.startswith(checked)}
        refuse_unknown(others, rule.held_out.tensors, "tensor")
        return rule

    def _restore_calibration(self, calibrated: Any, parts: Mapping[str, Tensor]) -> None:
        """Restore the calibration data of a file, if it has any."""
        if not isinstance(calibrated, bool) or (calibrated and not parts):
            raise NACError(f"'calibrated' is {calibrated!r}, with {len(parts)} tensors of it.")
        self.calibrated = calibrated
        if not parts:
            return
        expected = {*self.layers, LOGITS}
        expected |= {distance_of(n) for n in self.layers if self.evidence[n].moments is not None}
        if set(parts) != expected:
            raise NACError(f"calibrated with {sorted(parts)}, expected {sorted(expected)}.")
        values = {name: stored_values(parts, name, 1) for name in parts}
        if len({len(part) for part in values.values()}) > 1:
            raise NACError("the parts of the calibration data differ in size.")
        self._fusion = self._fuse(values)


def distance_of(layer: str) -> str:
    """The name of the part of the score for the distance of a layer."""
    return f"{layer} (distance)"


def _with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {n[len(prefix) :]: t for n, t in tensors.items() if n.startswith(prefix)}


class Fusion:
    """Turns the parts of a score into p-values against calibration data, and fuses them.

    `early` is the sum of the log p-values of all parts of the early layers, calibrated once more;
    `score = w log p(logits) - log(1 + s / p(early))`. Where the early layers find a sample unusual,
    `p(early)` below `s`, they count in full; above that, hardly at all.

    Args:
        calibration: the parts of held-out in-distribution data by name, `[samples]` each.
        logit_weight: the weight `w` of the logits.
        softness: the p-value `s` below which the early layers count.

    Attributes:
        scores: of the calibration data, each sample calibrated on the others, `[samples]`.
    """

    def __init__(
        self, calibration: Mapping[str, Tensor], *, logit_weight: float, softness: float
    ) -> None:
        self.calibration = {name: double(part).cpu() for name, part in calibration.items()}
        self.logit_weight, self.softness = logit_weight, softness
        self._pvalues = {name: PValues(part) for name, part in self.calibration.items()}
        left_out = {name: pvalues.left_out() for name, pvalues in self._pvalues.items()}
        self._early = PValues(_sum(_early_parts(left_out)))
        self.scores = self._fused(left_out[LOGITS], self._early.left_out())

    def evidence(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Log p-values of every part, and of the sum of the early layers under `EARLY`."""
        logs = {name: self._pvalues[name].log(part) for name, part in parts.items()}
        return {**logs, EARLY: self._early.log(_sum(_early_parts(logs)))}

    def score(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The score, float64 `[batch]`."""
        logs = self.evidence(parts)
        return self._fused(logs[LOGITS], logs[EARLY])

    def contributions(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """How much each part adds to the score; early layers in proportion to log p-values."""
        logs = self.evidence(parts)
        early_parts = _early_parts(logs)
        early, total = self._softened(logs[EARLY]), _sum(early_parts)
        even = torch.full_like(total, 1 / len(early_parts))  # where nothing is unusual
        shares = {
            name: early * torch.where(total == 0, even, log / total)
            for name, log in early_parts.items()
        }
        return {**shares, LOGITS: self.logit_weight * logs[LOGITS]}

    def _fused(self, logits: Tensor, early: Tensor) -> Tensor:
        return self.logit_weight * logits + self._softened(early)

    def _softened(self, early: Tensor) -> Tensor:
        """`-log(1 + s / p)` of log p-values."""
        return -torch.log1p(self.softness * torch.exp(-early))


def _sum(parts: Mapping[str, Tensor]) -> Tensor:
    total, *others = parts.values()
    for part in others:
        total = total + part
    return total


def _early_parts(logs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The early parts, sorted: their sum must not depend on the order in a file."""
    return {name: logs[name] for name in sorted(logs) if name not in (LOGITS, EARLY)}
