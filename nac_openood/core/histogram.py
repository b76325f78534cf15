"""Exact counts: how many fitting samples put a neuron into a bin.

All arithmetic is on integers up to the last division, so the result does not depend on batch
size, order or device, and merging two histograms is one addition.
"""

from __future__ import annotations

from typing import Type, TypeVar

import torch
from torch import Tensor

from nac_openood.core.bins import bin_index, count_bins
from nac_openood.errors import NACError

#: Counts are int32: half the memory, and more samples than anybody fits with.
_MOST_SAMPLES = 2**31 - 1
_H = TypeVar("_H", bound="Histogram")


class Histogram:
    """Counts `[neurons, bins]` of one layer, on the device of what it counts.

    Args:
        counts: int32 `[neurons, width(n_bins)]`.
        n_bins: the paper's M; see `nac_openood.core.bins`.
        n_samples: how many samples `counts` holds; each row sums to it.
    """

    def __init__(self, counts: Tensor, *, n_bins: int, n_samples: int = 0) -> None:
        self.counts = counts
        self.n_bins = n_bins
        self.n_samples = n_samples

    @classmethod
    def empty(cls: Type[_H], neurons: int, n_bins: int, device: torch.device) -> _H:
        """No samples yet."""
        shape = (neurons, cls.width(n_bins))
        return cls(torch.zeros(shape, dtype=torch.int32, device=device), n_bins=n_bins)

    @classmethod
    def of_sums(cls: Type[_H], counts: Tensor, n_bins: int) -> _H:
        """The histogram of counts that were added up over shards, int64 `[neurons, width]`."""
        n_samples = int(counts[0].sum())
        if n_samples > _MOST_SAMPLES:
            raise _too_many()
        return cls(counts.int(), n_bins=n_bins, n_samples=n_samples)

    @staticmethod
    def width(n_bins: int) -> int:
        """How many columns the counts have."""
        return count_bins(n_bins)

    @staticmethod
    def bins(states: Tensor, n_bins: int) -> Tensor:
        """The column of every state, int64 in the shape of `states`."""
        return bin_index(states, n_bins)

    @property
    def neurons(self) -> int:
        """How many neurons are counted."""
        return self.counts.shape[0]

    def update(self, states: Tensor) -> None:
        """Count states `[batch, neurons]`."""
        self._add_samples(states.shape[0])
        index = self._index(states)
        one = torch.ones((), dtype=torch.int32, device=index.device)
        self.counts.scatter_add_(1, index, one.expand(index.shape))

    def merge(self, other: Histogram) -> None:
        """Add the counts of `other`, which must have the same neurons and bins."""
        mine, theirs = (self.neurons, self.n_bins), (other.neurons, other.n_bins)
        if mine != theirs:
            raise NACError(
                f"cannot merge histograms of (neurons, n_bins) {mine} and {theirs}: "
                "both must come from the same layer with the same settings."
            )
        self._add_samples(other.n_samples)
        self.counts += other.counts.to(self.counts.device)

    def covered(self, states: Tensor, full_count: int) -> Tensor:
        """Sum over neurons of `min(count, full_count)`, int64 `[batch]`."""
        return self.hits(states).clamp_(max=full_count).sum(dim=0, dtype=torch.int64)

    def hits(self, states: Tensor) -> Tensor:
        """The count of every state's bin, int32 `[neurons, batch]`."""
        return self.counts.gather(1, self._index(states))

    def to(self: _H, device: torch.device) -> _H:
        """Move the counts; does nothing when they are there already."""
        self.counts = self.counts.to(device)
        return self

    def _index(self, states: Tensor) -> Tensor:
        """Bin of every state as `[neurons, batch]`, the order that scatter and gather run fast."""
        if states.ndim != 2 or states.shape[1] != self.neurons:
            raise NACError(
                f"expected states of shape [batch, {self.neurons}], got {list(states.shape)}: "
                "these readings are not of the layer this histogram was fitted on."
            )
        return self.bins(states.t().contiguous(), self.n_bins)

    def _add_samples(self, n: int) -> None:
        if self.n_samples + n > _MOST_SAMPLES:
            raise _too_many()
        self.n_samples += n


def _too_many() -> NACError:
    return NACError(f"a histogram counts at most {_MOST_SAMPLES} samples.")
