"""Reference NAC as a rule: the score of a sample is how well covered its neuron states are.

One histogram per layer counts the states of the training data; see `docs/method.md`.
"""

from __future__ import annotations

import copy
from typing import Any, Mapping, Optional, Sequence, Union

import torch
from torch import Tensor

from nac_openood.core.bins import count_bins
from nac_openood.core.histogram import Histogram
from nac_openood.core.layer_config import LayerConfig, whole_number
from nac_openood.core.reading import Reading, broken_error, not_finite, reading_in
from nac_openood.core.restoring import (
    check_counts,
    refuse_other_tensors,
    stored_layers,
    stored_tensor,
)
from nac_openood.core.rule import Needs, Rule
from nac_openood.core.saturation import saturation, usual_steepness
from nac_openood.core.states import STATES
from nac_openood.errors import NACError, NotFittedError


class Coverage(Rule):
    """Coverage of one or more layers.

    Args:
        layers: settings by layer name; the order is the order of reports, not of importance.
    """

    name, title = "nac", "NAC"
    layer_settings = LayerConfig
    reads_head_input = True

    def __init__(self, layers: Mapping[str, LayerConfig]) -> None:
        if not layers:
            raise NACError("no layers given: name at least one, e.g. {'avgpool': LayerConfig()}.")
        if sum(config.weight for config in layers.values()) <= 0:
            raise NACError("the layer weights sum to zero: give at least one layer weight > 0.")
        self.layers = dict(layers)
        self.histograms: dict[str, Histogram] = {}
        self._broken: dict[str, Union[int, Tensor]] = {}

    @property
    def needs(self) -> Needs:
        """Activations of all layers, gradients of those whose state looks at them."""
        gradients = {n for n, config in self.layers.items() if STATES[config.state].uses_gradient}
        return Needs(tuple(self.layers), frozenset(gradients))

    @property
    def n_samples(self) -> int:
        """How many samples were counted."""
        return min((h.n_samples for h in self.histograms.values()), default=0)

    def update(self, readings: Mapping[str, Reading], label: Optional[Tensor] = None) -> None:
        """Count a batch. Readings that are not finite are remembered and refused by `check`."""
        for name, config in self.layers.items():
            reading = self._reading(readings, name)
            states = states_of(reading, config)
            if name not in self.histograms:
                self.histograms[name] = Histogram.empty(
                    states.shape[1], config.n_bins, states.device
                )
            self.histograms[name].to(states.device).update(states)
            # added up on the device: reading the number here would stall every batch
            self._broken[name] = self._broken.get(name, 0) + not_finite(reading).sum()

    def check(self) -> None:
        """Raise if nothing was counted, or if a counted sample had NaN or Inf readings."""
        for name, broken in self._broken.items():
            if int(broken):
                n = self.histograms[name].n_samples
                raise broken_error(int(broken), f"{n} fitting samples", name)
        if self.n_samples == 0:
            raise NotFittedError("nothing was counted: fit on at least one sample first.")

    def parts(self, readings: Mapping[str, Reading]) -> dict[str, Tensor]:
        """Coverage by layer, `[batch]` each, in [0, 1]; NaN where a reading is not finite."""
        if self.n_samples == 0:
            raise NotFittedError("this coverage has no counts yet: call fit first.")
        scores = {}
        for name, config in self.layers.items():
            reading = self._reading(readings, name)
            histogram = self.histograms[name].to(reading.activation.device)
            hits = histogram.covered(states_of(reading, config), config.full_count)
            score = layer_score(hits, config.full_count, histogram.neurons)
            scores[name] = score.masked_fill(not_finite(reading), float("nan"))
        return scores

    def combine(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Weighted mean of the layer scores, `[batch]`."""
        return combine(parts, self.layers)

    def contributions(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Each layer's weighted score over the total weight."""
        total = total_weight([config.weight for config in self.layers.values()])
        return {name: self.layers[name].weight * part / total for name, part in parts.items()}

    def neurons(self, readings: Mapping[str, Reading]) -> dict[str, Tensor]:
        """Coverage of every neuron, by layer, in [0, 1]."""
        found = {}
        for name, config in self.layers.items():
            reading = self._reading(readings, name)
            histogram = self.histograms[name].to(reading.activation.device)
            hits = histogram.hits(states_of(reading, config)).t()
            found[name] = hits.clamp(max=config.full_count) / config.full_count
        return found

    def saturated(
        self, readings: Optional[Mapping[str, Reading]] = None, *, certain: bool = True
    ) -> dict[str, str]:
        """Layers that give nearly all ID samples the same score; see `Rule`."""
        told = {}
        for name, histogram in self.histograms.items():
            config = self.layers[name]
            found = saturation(histogram, config)
            if found is not None and (found.certain or not certain):
                known = readings is not None and name in readings
                better = usual_steepness(readings[name], config) if known else None  # type: ignore[index]
                told[name] = found.told(name, config, better)
        return told

    def merge(self, other: Coverage) -> None:
        """Add the counts of another coverage with the same layers and settings."""
        self._check_like(other)
        for name, histogram in other.histograms.items():
            if name in self.histograms:
                self.histograms[name].merge(histogram)
            else:
                self.histograms[name] = copy.deepcopy(histogram)
        for name, broken in other._broken.items():
            self._broken[name] = int(self._broken.get(name, 0)) + int(broken)

    def addends(self) -> Optional[dict[str, Tensor]]:
        """Counts and numbers of broken samples, by layer."""
        named = {}
        for name, histogram in self.histograms.items():
            broken = torch.as_tensor(self._broken.get(name, 0), device=histogram.counts.device)
            named.update({f"counts/{name}": histogram.counts, f"broken/{name}": broken})
        return named

    def set_sums(self, sums: Mapping[str, Tensor]) -> None:
        """Replace the counts by sums over shards."""
        for name, config in self.layers.items():
            if f"counts/{name}" in sums:
                counts = sums[f"counts/{name}"]
                self.histograms[name] = Histogram.of_sums(counts, config.n_bins)
                self._broken[name] = sums[f"broken/{name}"]

    def tensors(self) -> dict[str, Tensor]:
        """The counts by layer."""
        return {f"counts/{name}": histogram.counts for name, histogram in self.histograms.items()}

    def settings(self) -> dict[str, Any]:
        """The settings of each layer, and how many samples it counted."""
        return {
            "layers": {name: config.to_dict() for name, config in self.layers.items()},
            "n_samples": {name: h.n_samples for name, h in self.histograms.items()},
        }

    @classmethod
    def restore(cls, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Coverage:
        """The coverage that `settings` and `tensors` came from."""
        coverage = cls(stored_layers(settings, LayerConfig))
        refuse_other_tensors(tensors, {f"counts/{name}" for name in coverage.layers})
        counted = settings.get("n_samples")
        if not isinstance(counted, Mapping) or set(counted) != set(coverage.layers):
            raise NACError(f"'n_samples' must be a number for each layer, got {counted!r}.")
        for name, config in coverage.layers.items():
            counts = stored_tensor(tensors, f"counts/{name}", torch.int32, 2).clone()
            n_samples = whole_number("n_samples", counted[name], 1)
            check_counts(f"layer '{name}'", counts, n_samples, count_bins(config.n_bins))
            coverage.histograms[name] = Histogram(counts, n_bins=config.n_bins, n_samples=n_samples)
        return coverage

    def _reading(self, readings: Mapping[str, Reading], name: str) -> Reading:
        activation, gradient = reading_in(readings, name)
        if gradient is None and name in self.needs.gradients:
            raise NACError(
                f"layer '{name}': state '{self.layers[name].state}' needs gradients, but these "
                "readings have none. Read the network again with this state."
            )
        if activation.ndim != 2 or (gradient is not None and activation.shape != gradient.shape):
            shape = None if gradient is None else list(gradient.shape)
            raise NACError(
                f"layer '{name}': expected activation and gradient of one shape [batch, neurons], "
                f"got {list(activation.shape)} and {shape}."
            )
        return Reading(activation, gradient)


def layer_score(hits: Tensor, full_count: int, neurons: int) -> Tensor:
    """Mean coverage of a layer from `Histogram.covered`, in the shape of `hits`."""
    # MPS has no float64; everywhere else the quotient of two integers stays exact enough that
    # equal coverage means equal score
    dtype = torch.float32 if hits.device.type == "mps" else torch.float64
    return hits.to(dtype) / (full_count * neurons)


def combine(scores: Mapping[str, Tensor], layers: Mapping[str, LayerConfig]) -> Tensor:
    """The sample score from layer scores: `sum(weight * score) / sum(weight)`.

    Added up one layer after the other, in their order: a search that does the same gets the same
    bits.
    """
    weighted = [layers[name].weight * score for name, score in scores.items()]
    added = weighted[0]
    for part in weighted[1:]:
        added = added + part.to(added.device)
    return added / total_weight([layers[name].weight for name in scores])


def total_weight(weights: Sequence[float]) -> float:
    """What `combine` divides by; one function, because Python 3.12 rounds `sum` differently."""
    total = 0.0
    for weight in weights:
        total += weight
    return total


def states_of(reading: Reading, config: LayerConfig) -> Tensor:
    """States `[batch, neurons]` of a reading under the settings of a layer."""
    return STATES[config.state](*reading, config.steepness)
