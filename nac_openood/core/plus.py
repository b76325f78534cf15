"""NAC+: what early layers and the logits say, fused by p-values. Forward only.

Early and middle layers tell far-OOD inputs by how unusual their activations are, each neuron alone
(coverage) and all together (distance); the logits tell near-OOD inputs. `docs/nac_plus.md` has the
formulas and what they are worth.
"""

from __future__ import annotations

import warnings
from typing import Any, Iterable, Mapping, Optional, Sequence

import torch
from torch import Tensor

from nac_openood.core.fusion import LOGITS, Fusion
from nac_openood.core.layer_config import LayoutConfig, finite_number
from nac_openood.core.layer_evidence import LayerEvidence
from nac_openood.core.logit_scores import gen
from nac_openood.core.reading import Probed, Reading, logits_in, not_finite
from nac_openood.core.restoring import below, refuse_other_tensors, stored_layers, stored_values
from nac_openood.core.rule import Needs, Rule
from nac_openood.core.rules import RULES
from nac_openood.core.set_aside import SetAside
from nac_openood.errors import NACError, NotFittedError

_LOGIT_WEIGHT, _SOFTNESS = 2.0, 0.2
#: Far from where scores become infinite.
_MOST_WEIGHT = 1e6
_FEW = 100
#: What the names of the parts of the calibration data begin with in a file.
_CALIBRATION = "calibration/"


class NACPlus(Rule):
    """Coverage and distance of the activations of some layers and GEN of the logits, as p-values.

    Args:
        layers: settings by layer name: the last block of every stage but the last.
        logit_weight: how much the logits count beside the layers together.
        softness: the p-value from which on the layers count.
    """

    name, title = "nac_plus", RULES["nac_plus"].title
    layer_settings = LayoutConfig
    needs_calibration = True

    def __init__(
        self,
        layers: Mapping[str, LayoutConfig],
        *,
        logit_weight: float = _LOGIT_WEIGHT,
        softness: float = _SOFTNESS,
    ) -> None:
        super().__init__(layers)
        self.logit_weight = finite_number("logit_weight", logit_weight, _MOST_WEIGHT)
        self.softness = finite_number("softness", softness, 1.0)
        self.calibrated = False
        self.evidence: dict[str, LayerEvidence] = {}
        self._fusion: Optional[Fusion] = None
        self._aside = SetAside()
        self._before = 0  # samples of the training set that others count

    @property
    def needs(self) -> Needs:
        """Logits, and activations averaged over positions; no gradients."""
        return Needs(tuple(self.layers), logits=True, mean=True)

    @property
    def n_samples(self) -> int:
        """How many samples were counted or set aside."""
        counted = min((e.n_samples for e in self.evidence.values()), default=0)
        return counted + self._aside.n_samples

    # -- fitting ---------------------------------------------------------------------------

    def update(self, readings: Mapping[str, Reading], label: Optional[Tensor] = None) -> None:
        """Count a batch, and set some samples of it aside."""
        checked = self.checked(readings)
        self.count_broken(readings, checked)
        batch = Probed(logits_in(readings), checked)
        for counted in self._aside.take(batch, self.n_samples + self._before):
            self._count(counted)

    def start_at(self, index: int) -> None:
        """Tell which sample of the training set comes next; see `nac_openood.core.set_aside`."""
        self._before = index - self.n_samples

    def _count(self, readings: Mapping[str, Reading]) -> None:
        for name, (activation, _) in readings.items():
            if name not in self.evidence:
                self.evidence[name] = LayerEvidence.empty(activation.shape[1], activation.device)
            self.evidence[name].update(activation)
        self._uncalibrated()

    def _uncalibrated(self) -> None:
        """What was calibrated belongs to other counts now."""
        self._fusion, self.calibrated = None, False

    # -- calibration -----------------------------------------------------------------------

    def calibrate(self, parts: Iterable[Mapping[str, Tensor]]) -> Tensor:
        """As in `Rule`; samples that were set aside are counted first, as they have served."""
        if self._aside.readings is not None:
            self._count(self._aside.readings)
            self._aside = SetAside()
        return super().calibrate(parts)

    def _calibrate(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Each sample is calibrated on the others, so that scores are those of new data."""
        fusion = self._fusion = self._fuse(parts)
        self.calibrated = True
        n = len(fusion.scores)
        if n < _FEW:
            warnings.warn(
                f"calibrated on {n} samples only: p-values are coarse. Use {_FEW} or more.",
                UserWarning,
                stacklevel=4,
            )
        return fusion.scores

    def _fuse(self, parts: Mapping[str, Tensor]) -> Fusion:
        return Fusion(parts, logit_weight=self.logit_weight, softness=self.softness)

    def fusion(self) -> Fusion:
        """From parts to scores. Without calibration data, samples that were set aside must do."""
        if self._fusion is None:
            if self._aside.readings is None:
                raise NotFittedError("this rule has no p-values yet: call calibrate(loader) first.")
            warnings.warn(
                "NAC+ was not calibrated: its p-values rest on training data that was set aside, "
                "which a network knows better than new data. Call calibrate(loader) with ID "
                "validation data.",
                UserWarning,
                stacklevel=4,
            )
            self._fusion = self._fuse(self.parts(self._aside.readings))
        return self._fusion

    def held_out_scores(self) -> Optional[Tensor]:
        """Of every tenth training sample, before `calibrate`."""
        return None if self._aside.readings is None else self.fusion().scores

    # -- scoring ---------------------------------------------------------------------------

    def parts(self, readings: Mapping[str, Reading]) -> dict[str, Tensor]:
        """Coverage and distance by layer, GEN of the logits, float64 `[batch]` each."""
        self.check()
        scores = {}
        found = self.checked(readings)
        for name, (activation, _) in found.items():
            evidence = self._evidence(name)
            scores[name] = evidence.coverage.score(activation)
            if evidence.gaussian is not None:
                scores[distance_of(name)] = evidence.gaussian.score(activation)
        logits = logits_in(readings)
        scores[LOGITS] = gen(logits)
        broken = not_finite(Reading(logits), *found.values())
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

    # -- shards and files ------------------------------------------------------------------

    def sums(self) -> dict[str, Tensor]:
        """Counts and moments by layer, and the numbers of broken samples."""
        evidence = {
            f"{layer}/{name}": tensor
            for layer, evidence in self.evidence.items()
            for name, tensor in evidence.addends().items()
        }
        return {**self.state, **evidence}

    def set_sums(self, sums: Mapping[str, Tensor]) -> None:
        """Replace counts and moments by sums over shards; calibrate again afterwards."""
        own = {layer: below(f"{layer}/", sums) for layer in self.layers}
        self.evidence = {
            layer: LayerEvidence.of_sums(found) for layer, found in own.items() if found
        }
        self.state = {name: t for name, t in sums.items() if name.startswith("broken/")}
        self._uncalibrated()

    def kept_samples(self) -> dict[str, Tensor]:
        """The samples that were set aside."""
        return self._aside.tensors()

    def set_kept_samples(self, shards: Sequence[Mapping[str, Tensor]]) -> None:
        """Set aside what several shards did.

        Any order gives the same; and the same as one pass if each sample had its index
        (`start_at`). Once calibrated, indices make no difference.
        """
        self._aside, self._before = SetAside(), 0
        for samples in shards:
            for counted in self._aside.merge(SetAside.restore(samples, self.layers)):
                self._count(counted)

    def tensors(self) -> dict[str, Tensor]:
        """Evidence by layer, the parts of the calibration data, samples set aside."""
        layers = {
            f"layer/{layer}/{name}": tensor
            for layer, evidence in self.evidence.items()
            for name, tensor in evidence.tensors().items()
        }
        fusion = {} if self._fusion is None else self._fusion.calibration
        return {
            **layers,
            **{f"{_CALIBRATION}{name}": part for name, part in fusion.items()},
            **self._aside.tensors(),
        }

    def settings(self) -> dict[str, Any]:
        """Everything else that `restore` needs."""
        return {
            **super().settings(),
            "logit_weight": self.logit_weight,
            "softness": self.softness,
            "calibrated": self.calibrated,
        }

    @classmethod
    def restore(cls, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> NACPlus:
        """The rule that `settings` and `tensors` came from."""
        layers = stored_layers(settings, LayoutConfig)
        numbers: Any = {name: settings.get(name) for name in ("logit_weight", "softness")}
        rule = cls(layers, **numbers)
        for name in layers:
            try:
                rule.evidence[name] = LayerEvidence.restore(below(f"layer/{name}/", tensors))
            except NACError as error:
                raise NACError(f"layer '{name}': {error}") from error
        rule._restore_calibration(settings.get("calibrated"), below(_CALIBRATION, tensors))
        rule._aside = SetAside.restore(tensors, layers)
        checked = (_CALIBRATION, *(f"layer/{name}/" for name in layers))
        others = {name: t for name, t in tensors.items() if not name.startswith(checked)}
        refuse_other_tensors(others, rule._aside.tensors())
        return rule

    def _restore_calibration(self, calibrated: Any, parts: Mapping[str, Tensor]) -> None:
        """Take the parts of the calibration data from a file, where it has any."""
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
            raise NACError("the calibration data is not as large in every part.")
        self._fusion = self._fuse(values)


def distance_of(layer: str) -> str:
    """The name of the part that a layer's neurons say together."""
    return f"{layer} (distance)"
