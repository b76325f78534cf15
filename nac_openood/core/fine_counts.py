"""Counts on a fixed fine grid, from which quantiles and histograms can be made afterwards.

The grid is that of floating-point numbers with few mantissa bits: sign, exponent and the first
bits of the mantissa. It needs no look at the data first, so one pass is enough, and counts of
shards add up exactly.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from nac_openood.core.histogram import Histogram

#: 64 cells per power of two: a cell is 1 to 2 % of the value wide.
_MANTISSA_BITS = 6
#: Magnitudes from 2**-16 to 2**16; smaller ones are zero, larger ones the largest.
_LOWEST, _HIGHEST = -16, 16
_PER_SIGN = (_HIGHEST - _LOWEST) << _MANTISSA_BITS
#: Negative cells (most negative first), zero, positive cells.
N_CELLS = 2 * _PER_SIGN + 1


def cell_index(values: Tensor) -> Tensor:
    """The cell of every value, int64 in the shape of `values`; NaN counts as zero."""
    values = values.float()
    bits = values.abs().contiguous().view(torch.int32).to(torch.int64)
    # IEEE 754: shifting out mantissa bits leaves exponent and leading mantissa as one number
    magnitude = (bits >> (23 - _MANTISSA_BITS)) - ((_LOWEST + 127) << _MANTISSA_BITS) + 1
    magnitude = magnitude.clamp(0, _PER_SIGN).masked_fill(values.isnan(), 0)
    return _PER_SIGN + torch.where(values < 0, -magnitude, magnitude)


@lru_cache(maxsize=8)
def cell_edges(device: torch.device) -> Tensor:
    """The lower edge of every cell, and the upper edge of the last, float64 `[N_CELLS + 1]`.

    The cell around zero begins and ends at zero: what is in it counts as zero.
    """
    index = torch.arange(_PER_SIGN + 1, dtype=torch.float64)
    per_octave = 2**_MANTISSA_BITS
    octave, step = index.div(per_octave, rounding_mode="floor"), index % per_octave
    edges = torch.exp2(octave + _LOWEST) * (1 + step / per_octave)
    edges[0] = 0.0
    return torch.cat([-edges.flip(0), edges]).to(device)


class FineCounts(Histogram):
    """How often each neuron was in each cell: `n_bins` is `N_CELLS`, the number of columns."""

    @staticmethod
    def width(n_bins: int) -> int:
        """How many columns the counts have."""
        return n_bins

    @staticmethod
    def bins(states: Tensor, n_bins: int) -> Tensor:
        """The cell of every value, int64 in the shape of `states`."""
        return cell_index(states)

    def magnitude_quantile(self, share: float) -> Tensor:
        """The `share` quantile of the absolute values, float64 `[neurons]`.

        Values are taken to be evenly spread over their cell.
        """
        folded = self.counts[:, : _PER_SIGN + 1].flip(1).long()
        folded[:, 1:] += self.counts[:, _PER_SIGN + 1 :]
        position = share * (self.n_samples - 1)
        rank = int(position)
        low = self._ranked(folded, rank)
        high = self._ranked(folded, min(rank + 1, self.n_samples - 1))
        return torch.lerp(low, high, position - rank)

    @staticmethod
    def _ranked(folded: Tensor, rank: int) -> Tensor:
        """The magnitude `[neurons]` that `rank` others are smaller than."""
        reached = folded.cumsum(dim=1)
        cell = (reached > rank).int().argmax(dim=1, keepdim=True)
        inside = folded.gather(1, cell)
        before = reached.gather(1, cell) - inside
        edges = cell_edges(folded.device)[_PER_SIGN:]
        low, high = edges[cell], edges[cell + 1]
        return (low + (rank - before + 0.5) / inside * (high - low)).squeeze(1)

    def below(self, values: Tensor) -> Tensor:
        """How many counted values are smaller than `values` `[neurons, k]`, in that shape.

        Values are taken to be evenly spread over their cell, so this is not a whole number.
        """
        edges = cell_edges(values.device)
        # the cell around zero has no width: a value of zero has none of it below
        cell = (torch.searchsorted(edges, values.contiguous(), right=True) - 1).clamp(
            0, N_CELLS - 1
        )
        zero = values == 0
        cell = cell.masked_fill(zero, _PER_SIGN)
        inside = self.counts.gather(1, cell)
        before = self.counts.cumsum(dim=1).gather(1, cell) - inside
        low, high = edges[cell], edges[cell + 1]
        share = ((values - low) / (high - low)).clamp(0, 1).masked_fill(zero, 0.0)
        return before + share * inside
