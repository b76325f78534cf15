"""The probability of a neuron's output under its histogram, smoothed so that it has a gradient.

A histogram over `n_bins` equal bins is a step function of the neuron's output z. With interior
edges `e_1 < ... < e_{M-1}` and bin probabilities `q_0 ... q_{M-1}` it is

    p(z) = q_0 + sum over k of step(z - e_k) * (q_k - q_{k-1}),

where step is 1 from 0 on. Replacing each step by `sigmoid((z - e_k) / (temperature * width))` makes
it smooth. The result is a weighted mean of the bin probabilities, and differs from the histogram by
at most `sum over k of sigmoid(-|z - e_k| / (temperature * width)) * |q_k - q_{k-1}|`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class BinnedNeurons(NamedTuple):
    """The histogram of each neuron.

    Args:
        edges: interior edges `[neurons, n_bins - 1]`; the outer bins are open outwards.
        width: width of a bin `[neurons]`; 0 for a neuron that never changed.
        probabilities: share of the samples in each bin `[neurons, n_bins]`; rows sum to 1.
    """

    edges: Tensor
    width: Tensor
    probabilities: Tensor


def histogram(samples: Tensor, n_bins: int) -> BinnedNeurons:
    """The histogram of each neuron over its own range, in equal bins, closed on the left.

    Args:
        samples: outputs `[samples, neurons]`, finite.
        n_bins: number of bins.
    """
    by_neuron = samples.detach().t().contiguous()
    low, high = by_neuron.amin(dim=1), by_neuron.amax(dim=1)
    width = (high - low) / n_bins
    # a range below the rounding error of its ends cannot be divided into bins
    limits = torch.finfo(width.dtype)
    smallest = torch.maximum(low.abs(), high.abs()) * limits.eps + limits.tiny
    width = torch.where(width > smallest, width, torch.zeros_like(width))
    steps = torch.arange(1, n_bins, dtype=width.dtype, device=width.device)
    edges = low[:, None] + width[:, None] * steps
    index = torch.searchsorted(edges, by_neuron, right=True)
    counts = edges.new_zeros(len(edges), n_bins)
    counts.scatter_add_(1, index, torch.ones_like(by_neuron))
    return BinnedNeurons(edges, width, counts / len(samples))


def soft_probability(z: Tensor, bins: BinnedNeurons, temperature: float) -> Tensor:
    """The probability of each output, smoothed, with a gradient with respect to `z`.

    Args:
        z: outputs `[batch, neurons]`.
        bins: the histograms, which are constants here.
        temperature: width of the smoothing in bins; the histogram itself is the limit at 0.

    Returns:
        Probabilities `[batch, neurons]`; 1 for a neuron that never changed.
    """
    varies = bins.width > 0
    scale = torch.where(varies, temperature * bins.width, torch.ones_like(bins.width))
    steps = torch.sigmoid((z[:, :, None] - bins.edges) / scale[:, None])
    jumps = bins.probabilities.diff(dim=1)
    found = bins.probabilities[:, 0] + (steps * jumps).sum(dim=-1)
    return torch.where(varies, found, torch.ones_like(found))
