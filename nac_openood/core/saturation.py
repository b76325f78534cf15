"""Settings with which the samples of a layer all get the same score, seen from the counts alone.

If the sigmoid is too flat, all states lie at 0.5; if it is too steep, all lie at 0 and 1. Either
way the states of a neuron share two bins. Few bins in use are not wrong by themselves: the
published settings of early layers use few. What counts is whether samples get different scores.

A flat layer cannot tell anything. A steep one still notices OOD samples whose states vanish, which
ID samples never show; whether there are any is not in the counts.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

import torch
from torch import Tensor

from nac_openood.core.histogram import Histogram
from nac_openood.core.layer_config import LayerConfig
from nac_openood.core.reading import Reading
from nac_openood.core.states import STATES, USUAL

#: A layer is reported if at least this share of new ID samples gets one and the same score ...
_SAME = 0.9
#: ... because this share of the states lies in two bins per neuron, or nearly all in empty ones.
_TWO_BINS = 0.99
#: Fewer fitting samples say nothing about new ones.
_LEAST = 20
#: The usual size of a state is that of so many samples.
_FEW = 1000


class Saturation(NamedTuple):
    """Why ID samples get the same score from a layer.

    Args:
        same: at least this share of them does.
        why: "steep", "flat", "bins" (too few) or "empty".
    """

    same: float
    why: str

    @property
    def certain(self) -> bool:
        """Whether OOD samples get that score, too."""
        return self.why != "steep"

    def message(self, name: str, config: LayerConfig, steepness: Optional[float] = None) -> str:
        """What is wrong and what to change.

        Args:
            name: the name of the layer.
            config: its settings.
            steepness: what to try instead, if it is known.
        """
        setting = "n_bins" if self.why in ("bins", "empty") else "steepness"
        where, change = {
            "steep": ("nearly all states are 0 or 1", "lower it"),
            "flat": ("nearly all states are 0.5", "raise it"),
            "bins": ("nearly all states share two bins", "raise it"),
            "empty": ("nearly all new states are in empty bins", "lower it, fit on more data"),
        }[self.why]
        if steepness is not None and setting == "steepness":
            change = f"about {float(f'{steepness:.1g}'):g} spreads its states"
        same = f"{math.floor(100 * self.same)} % of ID samples get the same score"
        return (
            f"layer '{name}' cannot tell samples apart with {setting}={getattr(config, setting):g} "
            f"({where}, {same}): {change}, or leave the layer out"
        )


def saturation(histogram: Histogram, config: LayerConfig) -> Optional[Saturation]:
    """Why ID samples get the same score from a layer; None if they do not.

    A sample is scored as if it were new: its own state is left out of the counts.

    Args:
        histogram: the counts of the fitting samples.
        config: the settings.
    """
    n = histogram.n_samples
    if n < _LEAST or config.weight == 0:
        return None
    counts = histogram.counts
    share = counts.double() / n
    coverage = (counts - 1).clamp(min=0, max=config.full_count)
    # a sample's score differs from the usual one at most as often as a neuron's coverage does
    usual = _most_frequent(coverage, share)
    same = 1 - float((share * (coverage != usual[:, None])).sum())
    if same < _SAME:
        return None
    if bool((usual == 0).all()):
        return Saturation(same, "empty")
    if float(share.topk(2, dim=1).values.sum(dim=1).mean()) < _TWO_BINS:
        return None
    middle = counts.shape[1] // 2
    flat = float(share[:, middle - 1 : middle + 1].sum(dim=1).mean())
    ends = float((share[:, 0] + share[:, -1]).mean())
    if counts.shape[1] < 4:  # a state on the other side of zero must not make a difference
        equal = bool((coverage[:, 0] == coverage[:, 1]).all())
        return Saturation(same, "bins") if equal else None
    return Saturation(same, "steep" if ends > flat else "flat")


def _most_frequent(coverage: Tensor, share: Tensor) -> Tensor:
    """The coverage that most of the fitting samples of each neuron have, `[neurons]`."""
    # equal coverages stand side by side once sorted; the share up to each of them adds up
    ordered, order = coverage.sort(dim=1)
    total = share.gather(1, order).cumsum(dim=1)
    last = torch.ones_like(ordered, dtype=torch.bool)
    last[:, :-1] = ordered[:, 1:] != ordered[:, :-1]
    until = total.masked_fill(~last, 0.0)
    before = torch.zeros_like(until)
    before[:, 1:] = until.cummax(dim=1).values[:, :-1]
    return ordered.gather(1, (until - before).argmax(dim=1, keepdim=True))[:, 0]


def usual_steepness(reading: Reading, config: LayerConfig) -> Optional[float]:
    """The steepness that puts the usual states of a layer between 0.05 and 0.95.

    None if all of them are zero.

    Args:
        reading: in-distribution readings `[samples, neurons]`.
        config: the settings; the form of the state matters.
    """
    activation, gradient = reading
    few = activation[:_FEW], None if gradient is None else gradient[:_FEW]
    sizes = STATES[config.state].squashed(*few).abs().double().quantile(0.95, dim=0)
    sizes = sizes[(sizes > 0) & sizes.isfinite()]
    return USUAL / float(sizes.median()) if len(sizes) else None
