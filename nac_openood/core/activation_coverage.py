"""How well the activations of a layer are covered by those of the training data, per neuron.

A neuron's activation is measured against its own usual size `q`, squashed by a sigmoid and put
into one of 50 equal bins; the logarithm of how full the bin is, relative to an even spread, is the
evidence. See `docs/nac_plus.md`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nac_openood.core.devices import Placed, double
from nac_openood.core.fine_counts import FineCounts
from nac_openood.core.states import USUAL

_N_BINS = 50
_SIZE, _SIZE_FLOOR = 0.95, 0.10  # quantiles: of |z| per neuron, and of the sizes per layer
_SMOOTHING = 0.5


class ActivationCoverage:
    """The log coverage of every neuron and bin of a layer.

    Args:
        counts: counts of the training data.
    """

    def __init__(self, counts: FineCounts) -> None:
        sizes = counts.magnitude_quantile(_SIZE)
        sizes = sizes.clamp(min=float(sizes.quantile(_SIZE_FLOOR)) + 1e-12)
        slope = USUAL / sizes
        inner = torch.arange(1, _N_BINS, dtype=torch.float64, device=sizes.device) / _N_BINS
        below = counts.below(inner.logit() / slope[:, None])
        everything = below.new_full((len(sizes), 1), counts.n_samples)
        filled = torch.cat([torch.zeros_like(everything), below, everything], dim=1).diff(dim=1)
        share = (filled + _SMOOTHING) * _N_BINS / counts.n_samples
        self._learned = Placed(slope, share.log().clamp(max=0.0))

    def neurons(self, activation: Tensor) -> Tensor:
        """Log coverage of activations `[batch, neurons]`, in that shape; 0 is fully covered."""
        z = double(activation)
        slope, table = self._learned.on(z.device)
        states = torch.sigmoid(z * slope)
        bins = (states * _N_BINS).nan_to_num(0.0, 0.0, 0.0).long().clamp_(max=_N_BINS - 1)
        return table.gather(1, bins.t()).t()

    def score(self, activation: Tensor) -> Tensor:
        """Mean log coverage over neurons, float64 `[batch]`."""
        return self.neurons(activation).mean(dim=1)
