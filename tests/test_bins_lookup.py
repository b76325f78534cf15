"""The table lookup of states on a CPU is the binary search it stands in for."""

from __future__ import annotations

import pytest
import torch

from nac_openood.core import histogram as bins
from nac_openood.core.histogram import bin_index, edges


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_bins", [4, 5, 6, 7, 50, 51, 500, 1000, 5000, 300_000])
def test_lookup_is_bucketize(n_bins: int, dtype: torch.dtype) -> None:
    at = torch.tensor(edges(n_bins)[:: max(1, n_bins // 5000)]).to(dtype)
    zero, one = torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype)
    odd = torch.tensor([-1.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 1e-42])
    states = torch.cat(
        [at, at.nextafter(zero), at.nextafter(one), torch.rand(999, dtype=dtype), odd.to(dtype)]
    )
    boundaries = bins._interior_edges(n_bins, dtype, states.device)
    expected = torch.bucketize(states, boundaries, right=True)
    assert bin_index(states[None], n_bins).equal(expected[None])
    assert bin_index(states[:, None], n_bins).equal(expected[:, None])
    assert bin_index(states, n_bins).equal(expected)


def test_more_states_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    states = torch.rand(33, 40)
    whole = bin_index(states, 500)
    monkeypatch.setattr(bins, "_BLOCK", 100)
    assert bin_index(states, 500).equal(whole)
    assert bin_index(states.t(), 500).equal(whole.t())


def test_no_states() -> None:
    assert bin_index(torch.rand(0, 4), 50).shape == (0, 4)
    assert bin_index(torch.rand(4, 0), 50).shape == (4, 0)
