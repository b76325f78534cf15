"""NAC-ME: how much of their range the neurons of a network cover on its training data.

The states of correctly classified samples are counted in equal bins, and

    G = mean over neurons of (sum over bins of min(count / O*, 1)) / M

is the coverage of the network, a number from 0 to (M - 1) / M. See `docs/nac_me.md`.
"""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Mapping, Optional, Union

import torch
from torch import Tensor

from nac_openood.core.histogram import Histogram
from nac_openood.core.layer_config import IntegralConfig
from nac_openood.core.reading import Reading, broken_error, logits_in, not_finite, reading_in
from nac_openood.core.states import sigmoid
from nac_openood.errors import NACError, NotFittedError


@lru_cache(maxsize=64)
def linear_edges(n_bins: int) -> Tensor:
    """The `n_bins` edges of `n_bins - 1` equal bins, float32 from 0 to 1.

    Always computed on the CPU: other devices round `linspace` differently.
    """
    return torch.linspace(0.0, 1.0, n_bins, dtype=torch.float32)


class LinearHistogram(Histogram):
    """Counts `[neurons, n_bins]` in equal bins that are closed on the left and open on the right.

    There are `n_bins - 1` bins. A state of exactly 1 is in none of them; the last column counts
    such states, so that each row still sums to the number of samples.
    """

    @staticmethod
    def width(n_bins: int) -> int:
        """How many columns the counts have."""
        return n_bins

    @staticmethod
    def bins(states: Tensor, n_bins: int) -> Tensor:
        """The column of every state, int64 in the shape of `states`; the last one for NaN."""
        if states.dtype not in (torch.float32, torch.float64):
            states = states.float()
        edges = linear_edges(n_bins).to(states.device, states.dtype)
        return torch.bucketize(states, edges[1:], right=True)

    def integral(self, full_count: int) -> float:
        """G for this O*: one division of two integers."""
        filled = self.counts[:, :-1].clamp(max=full_count).sum(dtype=torch.int64)
        return int(filled) / (full_count * self.n_bins * self.neurons)


class CoverageIntegral:
    """The coverage of one layer, counted batch by batch; counts of shards add up exactly.

    Args:
        layer: the name of the layer.
        config: its settings.

    Attributes:
        n_samples: how many samples were seen, classified correctly or not.
    """

    def __init__(self, layer: str, config: IntegralConfig) -> None:
        self.layer, self.config = layer, config
        self.histogram: Optional[LinearHistogram] = None
        self.n_samples = 0
        self._broken: Union[int, Tensor] = 0

    @property
    def n_correct(self) -> int:
        """How many of them were classified correctly, and counted."""
        return 0 if self.histogram is None else self.histogram.n_samples

    def update(self, readings: Mapping[str, Reading], label: Tensor) -> None:
        """Count the correctly classified samples of a batch.

        Args:
            readings: readings of the layer `[batch, neurons]`, with logits `[batch, classes]`.
            label: int64 `[batch]`.
        """
        argument = state_argument(self.layer, reading_in(readings, self.layer))
        correct = logits_in(readings).argmax(dim=1).cpu() == label.cpu()
        counted = argument[correct.to(argument.device)]
        if self.histogram is None:
            n_bins = self.config.n_bins
            self.histogram = LinearHistogram.empty(counted.shape[1], n_bins, counted.device)
        self.histogram.to(counted.device).update(sigmoid(self.config.steepness * counted))
        self.n_samples += label.shape[0]
        # added up on the device: reading the number here would stall every batch
        self._broken = self._broken + not_finite(Reading(counted)).sum()

    def check(self) -> None:
        """Raise if no sample was seen, or if a counted sample had NaN or Inf readings."""
        if self.histogram is None or not self.n_samples:
            raise NotFittedError("nothing was counted: there was no training sample.")
        if int(self._broken):
            raise broken_error(int(self._broken), f"{self.n_correct} samples", self.layer)

    def integral(self) -> float:
        """G(X, theta); 0 where no sample was classified correctly."""
        self.check()
        assert self.histogram is not None
        return self.histogram.integral(self.config.full_count)

    def merge(self, other: CoverageIntegral) -> None:
        """Add the counts of another shard of the training data."""
        mine, theirs = (self.layer, self.config), (other.layer, other.config)
        if mine != theirs:
            raise NACError(
                f"cannot merge NAC-ME of different layers or settings: {mine} and {theirs}."
            )
        if self.histogram is None:
            self.histogram = copy.deepcopy(other.histogram)
        elif other.histogram is not None:
            self.histogram.merge(other.histogram)
        self.n_samples += other.n_samples
        self._broken = int(self._broken) + int(other._broken)


def state_argument(name: str, reading: Reading) -> Tensor:
    """What the sigmoid is taken of, `[batch, neurons]`, before multiplication by the steepness."""
    activation, gradient = reading
    if gradient is None:
        raise NACError(
            f"layer '{name}': NAC-ME needs gradients, but these readings have none. Read the "
            "network again with gradients."
        )
    return activation * gradient
