"""Reference NAC as a rule: the score of a sample is how well covered its neuron states are.

One histogram per layer counts the states of the training data; see `docs/method.md`.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

import torch
from torch import Tensor

from nac_openood.core.bins import count_bins
from nac_openood.core.histogram import Histogram
from nac_openood.core.layer_config import LayerConfig, whole_number
from nac_openood.core.reading import Reading
from nac_openood.core.restoring import (
    check_counts,
    refuse_other_tensors,
    stored_layers,
    stored_tensor,
)
from nac_openood.core.rule import Needs, Rule
from nac_openood.core.rules import RULES
from nac_openood.core.saturation import saturation, usual_steepness
from nac_openood.core.states import STATES
from nac_openood.errors import NACError


class Coverage(Rule):
    """Coverage of one or more layers.

    Args:
        layers: settings by layer name; the order is the order of reports, not of importance.
    """

    name, title = "nac", RULES["nac"].title
    layer_settings = LayerConfig
    reads_head_input = True

    def __init__(self, layers: Mapping[str, LayerConfig]) -> None:
        super().__init__(layers)
        if sum(config.weight for config in layers.values()) <= 0:
            raise NACError("the layer weights sum to zero: give at least one layer weight > 0.")
        self.histograms: dict[str, Histogram] = {}

    @property
    def needs(self) -> Needs:
        """Activations of all layers, gradients of those whose state uses them."""
        gradients = {n for n, config in self.layers.items() if STATES[config.state].uses_gradient}
        return Needs(tuple(self.layers), frozenset(gradients))

    @property
    def n_samples(self) -> int:
        """How many samples were counted."""
        return min((h.n_samples for h in self.histograms.values()), default=0)

    def update(self, readings: Mapping[str, Reading], label: Optional[Tensor] = None) -> None:
        """Count a batch. Readings that are not finite are refused by `check`."""
        checked = self.checked(readings)
        for name, reading in checked.items():
            config = self.layers[name]
            states = states_of(reading, config)
            if name not in self.histograms:
                self.histograms[name] = Histogram.empty(
                    states.shape[1], config.n_bins, states.device
                )
            self.histograms[name].to(states.device).update(states)
        self.count_broken(readings, checked)

    def layer_score(self, layer: str, reading: Reading) -> Tensor:
        """The coverage of a layer, in [0, 1]."""
        config = self.layers[layer]
        histogram = self.histograms[layer].to(reading.activation.device)
        hits = histogram.covered(states_of(reading, config), config.full_count)
        return layer_score(hits, config.full_count, histogram.neurons)

    def neurons(self, readings: Mapping[str, Reading]) -> dict[str, Tensor]:
        """Coverage of every neuron, by layer, in [0, 1]."""
        found = {}
        for name, reading in self.checked(readings).items():
            full_count = self.layers[name].full_count
            histogram = self.histograms[name].to(reading.activation.device)
            hits = histogram.hits(states_of(reading, self.layers[name])).t()
            found[name] = hits.clamp(max=full_count) / full_count
        return found

    def saturated(
        self, readings: Optional[Mapping[str, Reading]] = None, *, certain: bool = True
    ) -> dict[str, str]:
        """Layers that give nearly all ID samples the same score; see `Rule`."""
        messages = {}
        for name, histogram in self.histograms.items():
            config = self.layers[name]
            found = saturation(histogram, config)
            if found is not None and (found.certain or not certain):
                reading = None if readings is None else readings.get(name)
                better = None if reading is None else usual_steepness(reading, config)
                messages[name] = found.message(name, config, better)
        return messages

    def sums(self) -> dict[str, Tensor]:
        """Counts and numbers of broken samples, by layer."""
        return {**self.state, **self.tensors()}

    def set_sums(self, sums: Mapping[str, Tensor]) -> None:
        """Replace the counts by sums over shards."""
        counts = {n: sums[f"counts/{n}"] for n in self.layers if f"counts/{n}" in sums}
        self.state = {name: t for name, t in sums.items() if not name.startswith("counts/")}
        self.histograms = {
            name: Histogram.of_sums(total, self.layers[name].n_bins)
            for name, total in counts.items()
        }

    def tensors(self) -> dict[str, Tensor]:
        """The counts by layer."""
        return {f"counts/{name}": histogram.counts for name, histogram in self.histograms.items()}

    def settings(self) -> dict[str, Any]:
        """The settings of each layer, and how many samples it counted."""
        return {
            **super().settings(),
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


def layer_score(hits: Tensor, full_count: int, neurons: int) -> Tensor:
    """Mean coverage of a layer from `Histogram.covered`, in the shape of `hits`."""
    # MPS has no float64; everywhere else the quotient of two integers stays exact enough that
    # equal coverage means equal score
    dtype = torch.float32 if hits.device.type == "mps" else torch.float64
    return hits.to(dtype) / (full_count * neurons)


def states_of(reading: Reading, config: LayerConfig) -> Tensor:
    """States `[batch, neurons]` of a reading under the settings of a layer."""
    return STATES[config.state](*reading, config.steepness)
