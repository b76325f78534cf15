"""NAC+: what early layers and the logits say, fused by p-values. Forward only.

Early and middle layers tell far-OOD inputs by how unusual their activations are, each neuron alone
(coverage) and all together (distance); the logits tell near-OOD inputs. `docs/nac_plus.md` has the
formulas and what they are worth.
"""

from __future__ import annotations

import warnings
from typing import Any, Iterable, Mapping, Optional

import torch
from torch import Tensor

from nac_openood.core.coverage import missing_layer, not_finite
from nac_openood.core.fusion import EARLY, LOGITS, Fusion
from nac_openood.core.held_out import HeldOut, rows_of
from nac_openood.core.layer_config import LayoutConfig
from nac_openood.core.layer_evidence import LayerEvidence
from nac_openood.core.logit_scores import gen
from nac_openood.core.reading import Reading, logits_in
from nac_openood.core.rule import Needs, Rule
from nac_openood.errors import NACError, NotFittedError

__all__ = ["EARLY", "LOGITS", "NACPlus", "distance_of"]

_LOGIT_WEIGHT, _SOFTNESS = 2.0, 0.2
_FEW = 100


class NACPlus(Rule):
    """Coverage and distance of the activations of some layers and GEN of the logits, as p-values.

    Args:
        layers: settings by layer name: the last block of every stage but the last.
        logit_weight: how much the logits count beside the layers together.
        softness: the p-value from which on the layers count.
    """

    name = "nac_plus"
    layer_settings = LayoutConfig
    needs_calibration = True

    def __init__(
        self,
        layers: Mapping[str, LayoutConfig],
        *,
        logit_weight: float = _LOGIT_WEIGHT,
        softness: float = _SOFTNESS,
    ) -> None:
        if not layers:
            raise NACError("no layers given: name at least one, or `layers='auto'`.")
        self.layers = dict(layers)
        self.logit_weight, self.softness = logit_weight, softness
        self.calibrated = False
        self.evidence: dict[str, LayerEvidence] = {}
        self._fusion: Optional[Fusion] = None
        self._held = HeldOut()
        self._broken: Optional[Tensor] = None

    @property
    def needs(self) -> Needs:
        """Logits, and activations averaged over positions; no gradients."""
        return Needs(tuple(self.layers), logits=True, mean=True)

    @property
    def n_samples(self) -> int:
        """How many samples were counted or set aside."""
        counted = min((e.n_samples for e in self.evidence.values()), default=0)
        return counted + self._held.n_samples

    # -- fitting ---------------------------------------------------------------------------

    def update(self, readings: Mapping[str, Reading], label: Optional[Tensor] = None) -> None:
        """Count a batch, and set some samples of it aside."""
        found = {name: self._reading(readings, name) for name in self.layers}
        logits = logits_in(readings)
        broken = (self._not_finite(found, logits)).sum()
        self._broken = broken if self._broken is None else self._broken + broken
        self._count(rows_of(found, self._held.take(found, logits)))

    def _count(self, readings: Mapping[str, Reading]) -> None:
        for name, (activation, _) in readings.items():
            if name not in self.evidence:
                self.evidence[name] = LayerEvidence.empty(activation.shape[1], activation.device)
            self.evidence[name].update(activation)
        self._uncalibrated()

    def _uncalibrated(self) -> None:
        """What was calibrated belongs to other counts now."""
        self._fusion, self.calibrated = None, False

    def check(self) -> None:
        """Raise if nothing was counted, or if a sample had NaN or Inf readings."""
        if self._broken is not None and int(self._broken):
            raise NACError(
                f"{int(self._broken)} of {self.n_samples} fitting samples have NaN or Inf "
                "activations or logits. Check the inputs (normalization, corrupt images) and the "
                "precision (float16 overflows where bfloat16 does not)."
            )
        if self.n_samples == 0:
            raise NotFittedError("nothing was counted: fit on at least one sample first.")

    def merge(self, other: NACPlus) -> None:
        """Add what another one with the same layers was fitted on; calibrate again afterwards."""
        if self.layers != other.layers:
            raise NACError(
                f"cannot merge rules with different layers: {self.layers} and {other.layers}."
            )
        for name, theirs in other.evidence.items():
            if name not in self.evidence:
                counts = theirs.counts.counts
                self.evidence[name] = LayerEvidence.empty(counts.shape[0], counts.device)
            self.evidence[name].merge(theirs)
        self._held.add(other._held.readings)
        self._uncalibrated()

    # -- calibration -----------------------------------------------------------------------

    def calibrate(self, readings: Iterable[Mapping[str, Reading]]) -> Tensor:
        """Calibrate on held-out in-distribution data; returns its scores `[samples]`.

        Each of them is calibrated on the others, so that they are distributed as those of new data.
        """
        if self._held.readings is not None:  # no longer needed for that purpose
            self._count(self._held.readings)
            self._held = HeldOut()
        batches = [self.parts(batch) for batch in readings]
        if not batches:
            raise NACError("the loader yielded no batch: there is nothing to calibrate on.")
        parts = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
        fusion = self._fusion = self._fuse(parts)
        self.calibrated = True
        n = len(fusion.scores)
        if n < _FEW:
            warnings.warn(
                f"calibrated on {n} samples only: p-values are coarse. Use {_FEW} or more.",
                UserWarning,
                stacklevel=3,
            )
        return fusion.scores

    def _fuse(self, parts: Mapping[str, Tensor]) -> Fusion:
        return Fusion(parts, logit_weight=self.logit_weight, softness=self.softness)

    def fusion(self) -> Fusion:
        """From parts to scores. Without calibration data, samples that were set aside must do."""
        if self._fusion is None:
            if self._held.readings is None:
                raise NotFittedError("this rule has no p-values yet: call calibrate(loader) first.")
            warnings.warn(
                "NAC+ was not calibrated: its p-values rest on training data that was set aside, "
                "which a network knows better than new data. Call calibrate(loader) with ID "
                "validation data.",
                UserWarning,
                stacklevel=4,
            )
            self._fusion = self._fuse(self.parts(self._held.readings))
        return self._fusion

    def held_out_scores(self) -> Optional[Tensor]:
        """Of every tenth training sample, before `calibrate`."""
        return None if self._held.readings is None else self.fusion().scores

    # -- scoring ---------------------------------------------------------------------------

    def parts(self, readings: Mapping[str, Reading]) -> dict[str, Tensor]:
        """Coverage and distance by layer, GEN of the logits, float64 `[batch]` each."""
        self.check()
        scores = {}
        found = {name: self._reading(readings, name) for name in self.layers}
        for name, (activation, _) in found.items():
            evidence = self._evidence(name)
            scores[name] = evidence.coverage.score(activation)
            if evidence.gaussian is not None:
                scores[distance_of(name)] = evidence.gaussian.score(activation)
        logits = logits_in(readings)
        scores[LOGITS] = gen(logits)
        broken = self._not_finite(found, logits)
        return {
            name: score.masked_fill(broken.to(score.device), float("nan"))
            for name, score in scores.items()
        }

    def combine(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The score of `nac_openood.core.fusion`, float64 `[batch]`."""
        return self.fusion().score(parts)

    def contributions(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the logits add, and what each layer adds by coverage and distance together."""
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

    def _reading(self, readings: Mapping[str, Reading], name: str) -> Reading:
        if name not in readings:
            raise missing_layer(name, readings)
        activation = readings[name][0]
        if activation.ndim != 2:
            raise NACError(
                f"layer '{name}': expected activations [batch, neurons], got "
                f"{list(activation.shape)}."
            )
        return Reading(activation)

    @staticmethod
    def _not_finite(readings: Mapping[str, Reading], logits: Tensor) -> Tensor:
        broken = ~logits.isfinite().all(dim=1)
        for reading in readings.values():
            broken = broken | not_finite(reading).to(broken.device)
        return broken

    # -- files -----------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Evidence by layer, the parts of the calibration data, samples set aside."""
        layers = {
            f"layer/{layer}/{name}": tensor
            for layer, evidence in self.evidence.items()
            for name, tensor in evidence.tensors().items()
        }
        fusion = {} if self._fusion is None else self._fusion.held_out
        return {
            **layers,
            **{f"calibration/{name}": part for name, part in fusion.items()},
            **self._held.tensors(),
        }

    def settings(self) -> dict[str, Any]:
        """Everything else that `restore` needs."""
        return {
            "layers": {name: config.to_dict() for name, config in self.layers.items()},
            "logit_weight": self.logit_weight,
            "softness": self.softness,
            "calibrated": self.calibrated,
        }

    @classmethod
    def restore(cls, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> NACPlus:
        """The rule that `settings` and `tensors` came from."""
        layers = {n: LayoutConfig.from_dict(c) for n, c in settings["layers"].items()}
        rule = cls(layers, logit_weight=settings["logit_weight"], softness=settings["softness"])
        for name in layers:
            try:
                rule.evidence[name] = LayerEvidence.restore(_below(f"layer/{name}/", tensors))
            except NACError as error:
                raise NACError(f"layer '{name}': {error}.") from error
        calibration = _below("calibration/", tensors)
        rule._fusion = rule._fuse(calibration) if calibration else None
        rule.calibrated = bool(settings["calibrated"])
        rule._held = HeldOut.restore(tensors, layers)
        return rule

    def to(self, device: torch.device) -> NACPlus:
        """Move the counts; scoring moves what it needs to its readings by itself."""
        for evidence in self.evidence.values():
            evidence.to(device)
        return self


def distance_of(layer: str) -> str:
    """The name of the part that a layer's neurons say together."""
    return f"{layer} (distance)"


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {n[len(prefix) :]: t for n, t in tensors.items() if n.startswith(prefix)}
