"""Exact counts of neuron states, and NAC-ME, the coverage of a whole network.

All arithmetic is on integers up to the last division, so the result does not depend on batch size,
order or device, and merging two histograms is one addition.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Mapping, Optional, Tuple, Type, TypeVar

import numpy as np
import torch
from torch import Tensor

from nac_openood.core.layer_config import STATES, IntegralConfig, sigmoid
from nac_openood.core.reading import Reading, logits_in
from nac_openood.core.rule import Needs, Rule
from nac_openood.errors import NACError

_SPREAD = 1e3
#: 8 MB of cells at most; beyond that (n_bins in the hundred thousands) a binary search is used.
_MAX_CELLS = 2**19
_BLOCK = 2**17
_H = TypeVar("_H", bound="Histogram")


# -- bins that are dense around 0.5 and coarse at 0 and 1 -----------------------------------


def count_bins(n_bins: int) -> int:
    """The number of bins for `n_bins` (the paper's M); an odd M counts as M - 1."""
    return 2 * (n_bins // 2) - 2


@lru_cache(maxsize=64)
def edges(n_bins: int) -> np.ndarray:
    """The `count_bins + 1` edges in float64, from 0 over exactly 0.5 to 1."""
    # not np.log, whose last bit depends on the version of NumPy and on the processor
    logs = [math.log(x) for x in np.linspace(1.0, math.sqrt(_SPREAD), n_bins // 2)]
    left = np.array(logs) / math.log(_SPREAD)
    left[-1] = 0.5  # a dead neuron's state; log() may miss it by one ulp
    result = np.concatenate([left[:-1], (1.0 - left)[::-1]])
    result.setflags(write=False)
    return result


@lru_cache(maxsize=256)
def _interior_edges(n_bins: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The edges between bins, rounded so that comparing in `dtype` is comparing in float64.

    A float32 state is >= a float64 edge exactly when it is >= the smallest float32 that is not
    below that edge, so states never have to be widened.
    """
    exact = edges(n_bins)[1:-1]
    if dtype == torch.float64:
        return torch.tensor(exact, device=device)
    rounded = exact.astype(np.float32)
    too_low = rounded.astype(np.float64) < exact
    rounded[too_low] = np.nextafter(rounded[too_low], np.float32(np.inf))
    return torch.tensor(rounded, device=device)


def bin_index(state: Tensor, n_bins: int) -> Tensor:
    """The bin of every state, in the shape of `state`.

    Bins are closed on the left and the outermost are open outwards, so every finite state has
    one; a NaN lands in the last bin, and the caller must check for it.
    """
    # not in exported programs, whose batches have any size: `_look_up` splits by size
    if state.device.type == "cpu" and state.ndim == 2 and not torch.compiler.is_compiling():
        cells = _cells(n_bins, state.dtype)
        if cells is not None:
            return _look_up(state, *cells)
    boundaries = _interior_edges(n_bins, state.dtype, state.device)
    return torch.bucketize(state, boundaries, right=True)


@lru_cache(maxsize=64)
def _cells(n_bins: int, dtype: torch.dtype) -> Optional[Tuple[Tensor, Tensor]]:
    """Equal cells on [0, 1], so narrow that at most one edge lies inside each.

    Returns:
        For each cell, and for the state 1 after them, the bin it starts in, int64 `[cells + 1]`,
        and the next edge, `[cells + 1]`. None where that would take too many cells.
    """
    boundaries = _interior_edges(n_bins, dtype, torch.device("cpu"))
    narrowest = float(boundaries.double().diff().min()) if len(boundaries) > 1 else 1.0
    n_cells = 2 ** math.ceil(-math.log2(narrowest))
    if n_cells > _MAX_CELLS:
        return None
    # a power of two: where a cell starts, and which cell a state is in, are exact in any float
    starts = torch.arange(n_cells + 1, dtype=dtype) / n_cells
    first = torch.bucketize(starts, boundaries, right=True)
    unreachable = torch.tensor([float("nan")], dtype=dtype)  # also for infinity
    return first, torch.cat([boundaries, unreachable])[first]


def _look_up(state: Tensor, first: Tensor, following: Tensor) -> Tensor:
    """What `bucketize` gives, without its binary search: several times as fast on a CPU."""
    n_cells = len(first) - 1
    index = torch.empty(state.shape, dtype=torch.int64)
    size = max(1, _BLOCK // max(1, state.shape[1]))  # so that temporary tensors fit in the cache
    for part, found in zip(state.split(size), index.split(size)):
        cell = (part * n_cells).nan_to_num_(nan=n_cells).clamp_(0, n_cells).to(torch.int64)
        rows = part.shape[0]
        torch.gather(first.expand(rows, -1), 1, cell, out=found)
        found += part >= following.expand(rows, -1).gather(1, cell)
    return index


class Histogram:
    """Counts `[neurons, bins]` of one layer, on the device of what it counts.

    Args:
        counts: int32 `[neurons, width(n_bins)]`.
        n_bins: the paper's M.
        n_samples: how many samples `counts` holds; each row sums to it.

    Attributes:
        width: from `n_bins`, the number of columns of the counts.
        bins: from states and `n_bins`, the column of every state, int64 in the shape of the states.
    """

    width = staticmethod(count_bins)
    bins = staticmethod(bin_index)

    def __init__(self, counts: Tensor, *, n_bins: int, n_samples: int = 0) -> None:
        self.counts, self.n_bins, self.n_samples = counts, n_bins, n_samples

    @classmethod
    def empty(cls: Type[_H], neurons: int, n_bins: int, device: torch.device) -> _H:
        """No samples yet."""
        shape = (neurons, cls.width(n_bins))
        return cls(torch.zeros(shape, dtype=torch.int32, device=device), n_bins=n_bins)

    @classmethod
    def of_sums(cls: Type[_H], counts: Tensor, n_bins: int) -> _H:
        """The histogram of counts that were added up over shards, int64 `[neurons, width]`."""
        return cls(counts.int(), n_bins=n_bins, n_samples=int(counts[0].sum()))

    @property
    def neurons(self) -> int:
        """How many neurons are counted."""
        return self.counts.shape[0]

    def check(self, name: str) -> None:
        """Raise unless the counts, called `name`, hold one state per neuron and sample."""
        counts, n = self.counts, self.n_samples
        complete = counts.shape[0] > 0 and counts.shape[1] == self.width(self.n_bins)
        if not complete or bool((counts < 0).any()) or bool((counts.sum(dim=1) != n).any()):
            raise NACError(f"the {name} do not add up to {n} samples.")

    def update(self, states: Tensor) -> None:
        """Count states `[batch, neurons]`."""
        index = self._index(states)
        self.n_samples += states.shape[0]
        one = torch.ones((), dtype=torch.int32, device=index.device)
        self.counts.scatter_add_(1, index, one.expand(index.shape))

    def covered(self, states: Tensor, full_count: int) -> Tensor:
        """Sum over neurons of `min(count, full_count)`, int64 `[batch]`."""
        return self.hits(states).clamp_(max=full_count).sum(dim=0, dtype=torch.int64)

    def hits(self, states: Tensor) -> Tensor:
        """The count of every state's bin, int32 `[neurons, batch]`."""
        return self.counts.gather(1, self._index(states))

    def to(self: _H, device: torch.device) -> _H:
        """Move the counts to a device, in place; returns itself."""
        self.counts = self.counts.to(device)
        return self

    def _index(self, states: Tensor) -> Tensor:
        """Bin of every state as `[neurons, batch]`, where scatter and gather are fast."""
        if states.ndim != 2 or states.shape[1] != self.neurons:
            raise NACError(
                f"expected states of shape [batch, {self.neurons}], got {list(states.shape)}: "
                "these readings are not of the layer this histogram was fitted on."
            )
        if states.dtype != torch.float64:
            states = states.float()
        return self.bins(states.t().contiguous(), self.n_bins)


# -- NAC-ME ---------------------------------------------------------------------------------


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
        """The number of columns of the counts."""
        return n_bins

    @staticmethod
    def bins(states: Tensor, n_bins: int) -> Tensor:
        """The column of every state, int64 in the shape of `states`; the last one for NaN."""
        edges = linear_edges(n_bins).to(states.device, states.dtype)
        return torch.bucketize(states, edges[1:], right=True)

    def integral(self, full_count: int) -> float:
        """G for this O*: one division of two integers."""
        filled = self.counts[:, :-1].clamp(max=full_count).sum(dtype=torch.int64)
        return int(filled) / (full_count * self.n_bins * self.neurons)


class CoverageIntegral(Rule):
    """NAC-ME: how much of their range the neurons of a layer cover on the training data.

    The states of correctly classified samples are counted in equal bins, batch by batch, and

        G = mean over neurons of (sum over bins of min(count / O*, 1)) / M

    is the coverage, a number from 0 to (M - 1) / M. See `docs/checkpoints.md`. It is fitted and
    merged like other rules, on one layer, but has no scores of samples.

    Attributes:
        n_samples: how many samples were seen, classified correctly or not.
    """

    name = "nac_me"
    layer_settings = IntegralConfig

    @property
    def needs(self) -> Needs:
        """Activations and gradients of the layer, and labels."""
        return Needs(tuple(self.layers), frozenset(self.layers), labels=True)

    @property
    def histogram(self) -> LinearHistogram:
        """The counts of the samples that were classified correctly."""
        self.check()
        (config,) = self.layers.values()
        return LinearHistogram.of_sums(self.state["counts"], config.n_bins)

    def update(self, readings: Mapping[str, Reading], label: Optional[Tensor] = None) -> None:
        """Count the correctly classified samples of a batch."""
        assert label is not None  # see `needs`
        ((layer, config),) = self.layers.items()
        argument = STATES["output*gradient"].squashed(*self.checked(readings)[layer])
        correct = logits_in(readings).argmax(dim=1).cpu() == label.cpu()
        counted = argument[correct.to(argument.device)]
        histogram = LinearHistogram.empty(counted.shape[1], config.n_bins, counted.device)
        histogram.update(sigmoid(config.steepness * counted))
        self.add("counts", histogram.counts)
        self.count_broken(readings, {layer: Reading(counted)})
        self.add("n_samples", torch.tensor(len(label)))

    def integral(self) -> float:
        """G(X, theta); 0 where no sample was classified correctly."""
        (config,) = self.layers.values()
        return self.histogram.integral(config.full_count)
