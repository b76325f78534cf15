"""A histogram a layer, and the score of a sample: how well covered its neuron states are.

Knows no network: it takes a dict `layer -> (activation, gradient)`, both `[batch, neurons]`.
"""

from __future__ import annotations

from typing import Mapping, Sequence, Tuple

import torch
from torch import Tensor

from nac_openood.config import LayerConfig
from nac_openood.core.histogram import Histogram
from nac_openood.core.states import STATES
from nac_openood.errors import NACError, NotFittedError

Pair = Tuple[Tensor, Tensor]


class Coverage:
    """Fitted coverage of one or more layers.

    Args:
        layers: settings by layer name; the order is the order of reports, not of importance.
    """

    def __init__(self, layers: Mapping[str, LayerConfig]) -> None:
        if not layers:
            raise NACError("no layers given: name at least one, e.g. {'avgpool': LayerConfig()}.")
        if sum(config.weight for config in layers.values()) <= 0:
            raise NACError("the layer weights sum to zero: give at least one layer weight > 0.")
        self.layers = dict(layers)
        self.histograms: dict[str, Histogram] = {}
        self._broken: dict[str, Tensor] = {}

    @property
    def n_samples(self) -> int:
        """How many samples were counted."""
        return min((h.n_samples for h in self.histograms.values()), default=0)

    def update(self, readings: Mapping[str, Pair]) -> None:
        """Count a batch. Not-finite readings are remembered and refused by `check`."""
        for name, config in self.layers.items():
            activation, gradient = self._pair(readings, name)
            states = states_of(activation, gradient, config)
            if name not in self.histograms:
                self.histograms[name] = Histogram.empty(
                    states.shape[1], config.n_bins, states.device
                )
            self.histograms[name].to(states.device).update(states)
            broken = not_finite(activation, gradient).sum()
            # added up on the device: reading the number here would stall every batch
            self._broken[name] = self._broken[name] + broken if name in self._broken else broken

    def check(self) -> None:
        """Raise if nothing was counted, or if a counted sample had NaN or Inf readings."""
        for name, broken in self._broken.items():
            if int(broken):
                raise NACError(
                    f"layer '{name}': {int(broken)} of {self.histograms[name].n_samples} fitting "
                    "samples have NaN or Inf readings. Check the inputs (normalization, corrupt "
                    "images) and the precision (float16 overflows where bfloat16 does not)."
                )
        if self.n_samples == 0:
            raise NotFittedError("nothing was counted: fit on at least one sample first.")

    def layer_scores(self, readings: Mapping[str, Pair]) -> dict[str, Tensor]:
        """Coverage by layer, `[batch]` each, in [0, 1]; NaN where a reading is not finite."""
        if self.n_samples == 0:
            raise NotFittedError("this coverage has no counts yet: call fit first.")
        scores = {}
        for name, config in self.layers.items():
            activation, gradient = self._pair(readings, name)
            histogram = self.histograms[name].to(activation.device)
            hits = histogram.covered(states_of(activation, gradient, config), config.full_count)
            score = layer_score(hits, config.full_count, histogram.neurons)
            broken = not_finite(activation, gradient)
            scores[name] = score.masked_fill(broken, float("nan"))
        return scores

    def score(self, readings: Mapping[str, Pair]) -> Tensor:
        """Weighted mean of the layer scores, `[batch]`; higher is more in-distribution."""
        return combine(self.layer_scores(readings), self.layers)

    def to(self, device: torch.device) -> Coverage:
        """Move the counts; scoring moves them to its readings by itself."""
        for histogram in self.histograms.values():
            histogram.to(device)
        self._broken = {name: broken.to(device) for name, broken in self._broken.items()}
        return self

    def merge(self, other: Coverage) -> None:
        """Add the counts of another coverage with the same layers and settings."""
        if self.layers != other.layers:
            raise NACError(
                "cannot merge coverages with different layers or settings: "
                f"{self.layers} and {other.layers}."
            )
        for name, histogram in other.histograms.items():
            if name in self.histograms:
                self.histograms[name].merge(histogram)
            else:
                self.histograms[name] = Histogram(
                    histogram.counts.clone(), n_bins=histogram.n_bins, n_samples=histogram.n_samples
                )
        for name, broken in other._broken.items():
            mine = self._broken.get(name)
            self._broken[name] = broken if mine is None else mine + broken.to(mine.device)

    def _pair(self, readings: Mapping[str, Pair], name: str) -> Pair:
        if name not in readings:
            raise NACError(
                f"readings of layer '{name}' are missing; got {sorted(readings)}. "
                "Collect them with the layers that are fitted and scored."
            )
        activation, gradient = readings[name]
        if activation.ndim != 2 or activation.shape != gradient.shape:
            raise NACError(
                f"layer '{name}': expected activation and gradient of one shape [batch, neurons], "
                f"got {list(activation.shape)} and {list(gradient.shape)}."
            )
        return activation, gradient


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


def states_of(activation: Tensor, gradient: Tensor, config: LayerConfig) -> Tensor:
    """States `[batch, neurons]` of readings under the settings of a layer."""
    return STATES[config.state](activation, gradient, config.steepness)


def not_finite(activation: Tensor, gradient: Tensor) -> Tensor:
    """Which samples `[batch]` have a NaN or Inf in either reading."""
    return ~(activation.isfinite() & gradient.isfinite()).all(dim=1)
