"""Where a state belongs: bins that are dense around 0.5 and coarse at 0 and 1."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from nac_openood.errors import NACError

#: Fewer than four edges leave no bin at all.
MIN_BINS = 4
_SPREAD = 1e3


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
    left = np.log(np.linspace(1.0, np.sqrt(_SPREAD), n_bins // 2)) / np.log(_SPREAD)
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
    boundaries = _interior_edges(n_bins, state.dtype, state.device)
    return torch.bucketize(state, boundaries, right=True)
