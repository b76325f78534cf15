"""Reference NAC as a rule: the score of a sample is how well covered its neuron states are.

One histogram per layer counts the states of the training data; see `docs/method.md`.
"""

from __future__ import annotations

import math
from typing import Any, Mapping, Optional

import torch
from torch import Tensor

from nac_openood.core import RULES
from nac_openood.core.histogram import Histogram
from nac_openood.core.layer_config import STATES, TYPICAL, LayerConfig
from nac_openood.core.reading import Reading
from nac_openood.core.rule import Needs, Rule, stored_layers
from nac_openood.errors import NACError


class Coverage(Rule):
    """Coverage of one or more layers.

    Args:
        layers: settings by layer name; the order is the order of reports, not of importance.
    """

    name, title = "nac", RULES["nac"][0]
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

    @property
    def widths(self) -> Mapping[str, int]:
        """As in `Rule`."""
        return {name: histogram.neurons for name, histogram in self.histograms.items()}

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
            config, histogram = self.layers[name], self.histograms[name]
            hits = histogram.to(reading.activation.device).hits(states_of(reading, config))
            found[name] = hits.t().clamp(max=config.full_count) / config.full_count
        return found

    def saturated(
        self, readings: Optional[Mapping[str, Reading]] = None, *, certain: bool = True
    ) -> dict[str, str]:
        """Find layers that give nearly all ID samples the same score; see `Rule`."""
        messages = {}
        for name, histogram in self.histograms.items():
            config = self.layers[name]
            found = saturation(histogram, config)
            if found is not None and not (certain and found[0] == "steep"):
                reading = (readings or {}).get(name)
                better = None if reading is None else typical_steepness(reading, config)
                messages[name] = _saturation_message(name, config, *found, better)
        return messages

    def sums(self) -> dict[str, Tensor]:
        """Counts, and the number of samples with NaN or Inf, by layer."""
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
        """Restore a rule from its `settings` and `tensors`."""
        coverage = cls(stored_layers(settings, LayerConfig))
        for name, config in coverage.layers.items():
            counts, n_samples = tensors[f"counts/{name}"].clone(), settings["n_samples"][name]
            histogram = Histogram(counts, n_bins=config.n_bins, n_samples=n_samples)
            histogram.check(f"counts of layer '{name}'")
            coverage.histograms[name] = histogram
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


# -- settings with which all samples of a layer get the same score --------------------------
#
# If the sigmoid is too flat, all states lie at 0.5; if it is too steep, all lie at 0 and 1. Either
# way the states of a neuron share two bins. Using few bins is not wrong by itself: the published
# settings of early layers do. What matters is whether samples get different scores. A flat layer
# cannot separate anything. A steep one still detects OOD samples whose states vanish, unlike those
# of ID samples; the counts do not show whether there are any.

#: A layer is reported if at least this share of new ID samples gets one and the same score ...
_SAME = 0.9
#: ... because this share of the states lies in two bins per neuron, or nearly all in empty ones.
_TWO_BINS = 0.99
#: With fewer fitting samples nothing is reported.
_MIN_SAMPLES = 20
#: A typical steepness is estimated on at most this many samples.
_MAX_SAMPLES = 1000


def saturation(histogram: Histogram, config: LayerConfig) -> Optional[tuple[str, float]]:
    """Find out why a layer gives ID samples the same score; None if it does not.

    A sample is scored as if it were new: its own state is left out of the counts.

    Args:
        histogram: the counts of the fitting samples.
        config: the settings.

    Returns:
        The reason, "steep", "flat", "bins" (too few) or "empty", and a lower bound of the share
        of ID samples that get the same score. OOD samples get it, too, unless it is "steep".
    """
    n = histogram.n_samples
    if n < _MIN_SAMPLES or config.weight == 0:
        return None
    counts = histogram.counts
    share = counts.double() / n
    coverage = (counts - 1).clamp(min=0, max=config.full_count)
    # at most as many samples have another score as have another coverage of some neuron
    values, index = coverage.unique(return_inverse=True)
    totals = share.new_zeros((len(coverage), len(values))).scatter_add_(1, index, share)
    typical = values[totals.argmax(dim=1)]  # of each neuron
    same = 1 - float((share * (coverage != typical[:, None])).sum())
    if same < _SAME:
        return None
    if bool((typical == 0).all()):
        return "empty", same
    if float(share.topk(2, dim=1).values.sum(dim=1).mean()) < _TWO_BINS:
        return None
    if counts.shape[1] < 4:  # a state on the other side of zero must not make a difference
        return ("bins", same) if bool((coverage[:, 0] == coverage[:, 1]).all()) else None
    middle = counts.shape[1] // 2
    flat, ends = share[:, middle - 1 : middle + 1].sum(), (share[:, 0] + share[:, -1]).sum()
    return ("steep" if ends > flat else "flat"), same


def _saturation_message(
    layer: str, config: LayerConfig, why: str, same: float, steepness: Optional[float]
) -> str:
    """What is wrong and what to change; `steepness` is a better value, if one is known."""
    setting, where, change = {
        "steep": ("steepness", "nearly all states are 0 or 1", "lower it"),
        "flat": ("steepness", "nearly all states are 0.5", "raise it"),
        "bins": ("n_bins", "nearly all states share two bins", "raise it"),
        "empty": ("n_bins", "nearly all new states hit empty bins", "lower it, fit on more data"),
    }[why]
    if steepness is not None and setting == "steepness":
        change = f"about {float(f'{steepness:.1g}'):g} spreads its states"
    return (
        f"layer '{layer}' cannot tell samples apart with {setting}={getattr(config, setting):g} "
        f"({where}, {math.floor(100 * same)} % of ID samples get the same score): {change}, or "
        "leave the layer out"
    )


def typical_steepness(reading: Reading, config: LayerConfig) -> Optional[float]:
    """The steepness that puts typical states of a layer between 0.05 and 0.95.

    None if all of them are zero.

    Args:
        reading: in-distribution readings `[samples, neurons]`.
        config: the settings of the layer, for the form of its state.
    """
    activation, gradient = reading
    few = activation[:_MAX_SAMPLES], None if gradient is None else gradient[:_MAX_SAMPLES]
    sizes = STATES[config.state].squashed(*few).abs().double().quantile(0.95, dim=0)
    sizes = sizes[(sizes > 0) & sizes.isfinite()]
    return TYPICAL / float(sizes.median()) if len(sizes) else None
