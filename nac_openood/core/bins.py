"""Where a state belongs: bins that are dense around 0.5 and coarse at 0 and 1."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Optional, Tuple

import numpy as np
import torch
from torch import Tensor

from nac_openood.errors import NACError

#: Fewer than four edges leave no bin at all.
MIN_BINS = 4
_SPREAD = 1e3
#: 8 MB of cells at most; beyond that (n_bins in the hundred thousands) a binary search is used.
_MOST_CELLS = 2**19
_BLOCK = 2**17


def count_bins(n_bins: int) -> int:
    """The number of bins that `n_bins` (the paper's M) really makes; an odd M counts as M - 1."""
    return 2 * (n_bins // 2) - 2


@lru_cache(maxsize=64)
def edges(n_bins: int) -> np.ndarray:
    """The `count_bins + 1` edges in float64, from 0 over exactly 0.5 to 1."""
    if n_bins < MIN_BINS:
        raise NACError(
            f"n_bins must be at least {MIN_BINS}, got {n_bins}: with fewer there is no bin. "
            "The paper uses 50 to 1000."
        )
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
    below = rounded.astype(np.float64) < exact
    rounded[below] = np.nextafter(rounded[below], np.float32(np.inf))
    return torch.tensor(rounded, device=device)


def bin_index(state: Tensor, n_bins: int) -> Tensor:
    """The bin of every state, in the shape of `state`.

    Bins are closed on the left and the outermost are open outwards, so every finite state has
    one; a NaN lands in the last bin and is for the caller to notice.
    """
    if state.dtype not in (torch.float32, torch.float64):
        state = state.float()
    # `_look_up` splits by size, which a program for batches of any size cannot
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
    if n_cells > _MOST_CELLS:
        return None
    # a power of two: where a cell starts, and which cell a state is in, are exact in any float
    starts = torch.arange(n_cells + 1, dtype=dtype) / n_cells
    first = torch.bucketize(starts, boundaries, right=True)
    beyond = torch.tensor([float("nan")], dtype=dtype)  # which no state reaches, nor infinity
    return first, torch.cat([boundaries, beyond])[first]


def _look_up(state: Tensor, first: Tensor, following: Tensor) -> Tensor:
    """What `bucketize` gives, without its binary search: several times as fast on a CPU."""
    n_cells = len(first) - 1
    index = torch.empty(state.shape, dtype=torch.int64)
    size = max(1, _BLOCK // max(1, state.shape[1]))  # what is made on the way stays in the cache
    for part, found in zip(state.split(size), index.split(size)):
        cell = (part * n_cells).nan_to_num_(nan=n_cells).clamp_(0, n_cells).to(torch.int64)
        rows = part.shape[0]
        torch.gather(first.expand(rows, -1), 1, cell, out=found)
        found += part >= following.expand(rows, -1).gather(1, cell)
    return index
