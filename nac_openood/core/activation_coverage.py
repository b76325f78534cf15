"""How well the activations of a layer are covered by those of the training data, per neuron.

A neuron's activation is measured against its own usual size `q`, squashed by a sigmoid and put
into one of 50 equal bins; the logarithm of how full the bin is, relative to an even spread, is the
evidence. See `docs/nac_plus.md`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nac_openood.core.fine_counts import FineCounts, cell_index, cell_values

N_BINS = 50
_SIZE, _SIZE_FLOOR = 0.95, 0.10  # quantiles: of |z| per neuron, and of the sizes per layer
_STEEPNESS = 2.94  # a usual activation lands at 0.95
_SMOOTHING = 0.5


class ActivationCoverage:
    """The log coverage of every neuron and cell of a layer.

    Args:
        counts: counts of the training data.
    """

    def __init__(self, counts: FineCounts) -> None:
        sizes = counts.magnitude_quantile(_SIZE)
        sizes = sizes.clamp(min=float(sizes.quantile(_SIZE_FLOOR)) + 1e-12)
        values = cell_values(counts.counts.device)
        bins = torch.empty(counts.counts.shape, dtype=torch.int64, device=values.device)
        for row, size in enumerate(sizes):  # a row at a time: the whole would be large in float64
            states = torch.sigmoid(_STEEPNESS * values / size)
            bins[row] = (states * N_BINS).long().clamp_(max=N_BINS - 1)
        filled = torch.zeros((len(sizes), N_BINS), dtype=torch.int64, device=values.device)
        filled.scatter_add_(1, bins, counts.counts.long())
        share = (filled.double() + _SMOOTHING) * N_BINS / counts.n_samples
        self._table = share.log().clamp(max=0.0).float().gather(1, bins)

    def neurons(self, activation: Tensor) -> Tensor:
        """Log coverage of activations `[batch, neurons]`, in that shape; 0 is fully covered."""
        index = cell_index(activation).t().contiguous()
        return self._table.to(index.device).gather(1, index).t()

    def score(self, activation: Tensor) -> Tensor:
        """Mean log coverage over neurons, float64 `[batch]`."""
        return self.neurons(activation).double().mean(dim=1)
