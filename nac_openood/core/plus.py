"""NAC+: coverage of plain activations and the logits, fused by p-values. Forward only.

Early and middle layers tell far-OOD inputs by how unusual their activations are; the logits tell
near-OOD inputs. Each is turned into a p-value against held-out in-distribution data, so that their
evidence can be added. `docs/nac_plus.md` has the formulas and what they are worth.
"""

from __future__ import annotations

import warnings
from typing import Any, Iterable, Mapping, Optional

import torch
from torch import Tensor

from nac_openood.core.activation_coverage import ActivationCoverage
from nac_openood.core.coverage import missing_layer, not_finite
from nac_openood.core.fine_counts import FineCounts
from nac_openood.core.held_out import HeldOut, rows_of
from nac_openood.core.layer_config import LayoutConfig
from nac_openood.core.logit_scores import gen
from nac_openood.core.pvalues import PValues
from nac_openood.core.reading import Reading, logits_in
from nac_openood.core.rule import Needs, Rule
from nac_openood.errors import NACError, NotFittedError

#: Names of the parts of the score that no layer has.
LOGITS, EARLY = "logits", "early"
#: How much more the logits count than the layers together.
LOGIT_WEIGHT = 4.0
_FEW = 100


class NACPlus(Rule):
    """Activation coverage of some layers and GEN of the logits, each as a p-value.

    Args:
        layers: settings by layer name: the last block of every stage but the last.
        logit_weight: how much more the logits count than the layers together.
    """

    name = "nac_plus"
    layer_settings = LayoutConfig
    needs_calibration = True

    def __init__(
        self, layers: Mapping[str, LayoutConfig], *, logit_weight: float = LOGIT_WEIGHT
    ) -> None:
        if not layers:
            raise NACError("no layers given: name at least one, or `layers='auto'`.")
        self.layers = dict(layers)
        self.logit_weight = logit_weight
        self.counts: dict[str, FineCounts] = {}
        #: p-values of every part, and whether the data was given for that purpose
        self.pvalues: dict[str, PValues] = {}
        self.calibrated = False
        self._held = HeldOut()
        self._broken: Optional[Tensor] = None
        self._coverage: dict[str, ActivationCoverage] = {}

    @property
    def needs(self) -> Needs:
        """Logits, and activations averaged over positions; no gradients."""
        return Needs(tuple(self.layers), logits=True, mean=True)

    @property
    def n_samples(self) -> int:
        """How many samples were counted or set aside."""
        counted = min((c.n_samples for c in self.counts.values()), default=0)
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
        for name, reading in readings.items():
            activation = reading.activation
            if name not in self.counts:
                self.counts[name] = FineCounts.empty(activation.shape[1], activation.device)
            self.counts[name].update(activation)
        self._changed()

    def _changed(self) -> None:
        """What was made of the counts belongs to other counts now."""
        self._coverage, self.pvalues, self.calibrated = {}, {}, False

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
        for name, counts in other.counts.items():
            self.counts[name].merge(counts)
        self._held.add(other._held.readings)
        self._changed()

    # -- calibration -----------------------------------------------------------------------

    def calibrate(self, readings: Iterable[Mapping[str, Reading]]) -> Tensor:
        """Set the p-values by held-out in-distribution data; returns its scores `[samples]`."""
        if self._held.readings is not None:  # no longer needed for that purpose
            self._count(self._held.readings)
            self._held = HeldOut()
        batches = [self.parts(batch) for batch in readings]
        if not batches:
            raise NACError("the loader yielded no batch: there is nothing to calibrate on.")
        parts = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
        self._set_pvalues(parts)
        self.calibrated = True
        n = len(parts[LOGITS])
        if n < _FEW:
            warnings.warn(
                f"calibrated on {n} samples only: p-values are coarse. Use {_FEW} or more.",
                UserWarning,
                stacklevel=3,
            )
        return self.combine(parts)

    def _set_pvalues(self, parts: Mapping[str, Tensor]) -> None:
        self.pvalues = {name: PValues(part) for name, part in parts.items()}
        self.pvalues[EARLY] = PValues(self._early(parts))

    def _calibrate_on_held(self) -> None:
        """Without calibration data the samples that were set aside have to do."""
        if self._held.readings is None:
            raise NotFittedError("this rule has no p-values yet: call calibrate(loader) first.")
        warnings.warn(
            "NAC+ was not calibrated: its p-values rest on training data that was set aside, which "
            "a network knows better than new data. Call calibrate(loader) with ID validation data.",
            UserWarning,
            stacklevel=4,
        )
        self._set_pvalues(self.parts(self._held.readings))

    # -- scoring ---------------------------------------------------------------------------

    def parts(self, readings: Mapping[str, Reading]) -> dict[str, Tensor]:
        """Mean log coverage by layer and GEN of the logits, float64 `[batch]` each."""
        self.check()
        found = {name: self._reading(readings, name) for name in self.layers}
        logits = logits_in(readings)
        broken = self._not_finite(found, logits)
        scores = {n: self._covered(n).score(found[n].activation) for n in self.layers}
        scores[LOGITS] = gen(logits)
        return {name: score.masked_fill(broken, float("nan")) for name, score in scores.items()}

    def combine(self, parts: Mapping[str, Tensor]) -> Tensor:
        """`logit_weight * log p(logits) + log p(early)`, float64 `[batch]`."""
        added = self.evidence(parts)
        return self.logit_weight * added[LOGITS] + added[EARLY]

    def contributions(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The logits' part, and the layers' part divided among them by their own log p-values."""
        logs = self.evidence(parts)
        together = self._early(parts)
        shares = {n: logs[EARLY] * (logs[n] / together).nan_to_num(0.0) for n in self.layers}
        return {**shares, LOGITS: self.logit_weight * logs[LOGITS]}

    def evidence(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Log p-values of every layer, of the logits, and of the layers together."""
        if not self.pvalues:
            self._calibrate_on_held()
        logs = {name: self.pvalues[name].log(part) for name, part in parts.items()}
        return {**logs, EARLY: self.pvalues[EARLY].log(self._early(parts))}

    def _early(self, parts: Mapping[str, Tensor]) -> Tensor:
        logs = [self.pvalues[name].log(parts[name]) for name in self.layers]
        total = logs[0]
        for log in logs[1:]:
            total = total + log
        return total

    def neurons(self, readings: Mapping[str, Reading]) -> dict[str, Tensor]:
        """Log coverage of every neuron by layer, `[batch, neurons]` each; 0 is fully covered."""
        return {n: self._covered(n).neurons(readings[n].activation) for n in self.layers}

    def _covered(self, name: str) -> ActivationCoverage:
        if name not in self._coverage:
            if name not in self.counts or not self.counts[name].n_samples:
                raise NotFittedError("nothing was counted: fit on more samples first.")
            self._coverage[name] = ActivationCoverage(self.counts[name])
        return self._coverage[name]

    def _reading(self, readings: Mapping[str, Reading], name: str) -> Reading:
        if name not in readings:
            raise missing_layer(name, readings)
        return Reading(readings[name][0])

    def _not_finite(self, readings: Mapping[str, Reading], logits: Tensor) -> Tensor:
        broken = ~logits.isfinite().all(dim=1)
        for reading in readings.values():
            broken = broken | not_finite(reading)
        return broken

    # -- files -----------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Counts without empty cells at both ends, calibration scores, samples set aside."""
        kept = {f"counts/{n}": c.counts[:, slice(*_used(c))] for n, c in self.counts.items()}
        scores = {f"calibration/{name}": p.scores for name, p in self.pvalues.items()}
        return {**kept, **scores, **self._held.tensors()}

    def settings(self) -> dict[str, Any]:
        """Everything else that `restore` needs."""
        return {
            "layers": {name: config.to_dict() for name, config in self.layers.items()},
            "n_samples": {name: c.n_samples for name, c in self.counts.items()},
            "first_cell": {name: _used(c)[0] for name, c in self.counts.items()},
            "logit_weight": self.logit_weight,
            "calibrated": self.calibrated,
        }

    @classmethod
    def restore(cls, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> NACPlus:
        """The rule that `settings` and `tensors` came from."""
        layers = {n: LayoutConfig.from_dict(c) for n, c in settings["layers"].items()}
        rule = cls(layers, logit_weight=settings["logit_weight"])
        for name, n_samples in settings["n_samples"].items():
            kept, first = tensors[f"counts/{name}"], settings["first_cell"][name]
            counts = FineCounts.empty(kept.shape[0], kept.device)
            counts.counts[:, first : first + kept.shape[1]] = kept
            counts.n_samples = n_samples
            if not bool((counts.counts.sum(dim=1) == n_samples).all()):
                raise NACError(f"the counts of layer '{name}' do not add up.")
            rule.counts[name] = counts
        prefix = "calibration/"
        rule.pvalues = {
            key[len(prefix) :]: PValues(t) for key, t in tensors.items() if key.startswith(prefix)
        }
        rule.calibrated = bool(settings["calibrated"])
        rule._held = HeldOut.restore(tensors, layers)
        return rule

    def to(self, device: torch.device) -> NACPlus:
        """Move the counts; scoring moves what it needs to its readings by itself."""
        for counts in self.counts.values():
            counts.counts = counts.counts.to(device)
        self._coverage = {}
        return self


def _used(counts: FineCounts) -> tuple[int, int]:
    """The first cell that any neuron was in, and the one after the last."""
    columns = counts.counts.any(dim=0).nonzero()[:, 0]
    return (int(columns[0]), int(columns[-1]) + 1) if len(columns) else (0, 1)
