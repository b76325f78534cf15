"""Bins: the authors' edges to the bit, and the bin of every state."""

import json
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nac_openood.core import histogram
from nac_openood.core.histogram import bin_index, count_bins, edges

VECTORS = json.loads((Path(__file__).parent / "data" / "vectors.json").read_text())


@pytest.mark.parametrize("m", ["4", "10", "50", "500"])
def test_edges_are_the_authors_edges_to_the_bit(m):
    reachable = VECTORS["edges"][m][: int(m) - 2]
    ours = edges(int(m))
    assert ours[:-1].tolist() == reachable
    assert ours[-1] == 1.0
    assert len(ours) == count_bins(int(m)) + 1


def test_an_odd_number_of_bins_counts_as_the_even_one_below():
    assert edges(51).tolist() == edges(50).tolist()


@pytest.mark.parametrize("m", [4, 10, 50, 500, 1000, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_edges_belong_to_the_bin_that_starts_there(m, dtype):
    exact = edges(m)
    states = torch.tensor(exact, dtype=dtype)
    at = torch.cat(
        [states, torch.nextafter(states, states - 1), torch.nextafter(states, states + 1)]
    )
    expected = oracle.membership(at.numpy()[:, None].astype(np.float64), m)[:, :, 0].argmax(axis=1)
    assert bin_index(at, m).tolist() == expected.tolist()


@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=50), st.sampled_from([4, 9, 50, 999])
)
def test_index_agrees_with_the_oracle(values, m):
    states = np.array(values, dtype=np.float32)
    expected = oracle.membership(states[:, None], m)[:, :, 0].argmax(axis=1)
    assert bin_index(torch.from_numpy(states), m).tolist() == expected.tolist()


# -- the table lookup of states on a CPU is the binary search it replaces


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_bins", [4, 5, 6, 7, 50, 51, 500, 1000, 5000, 300_000])
def test_lookup_is_bucketize(n_bins, dtype):
    at = torch.tensor(edges(n_bins)[:: max(1, n_bins // 5000)]).to(dtype)
    zero, one = torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype)
    odd = torch.tensor([-1.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 1e-42])
    states = torch.cat(
        [at, at.nextafter(zero), at.nextafter(one), torch.rand(999, dtype=dtype), odd.to(dtype)]
    )
    boundaries = histogram._interior_edges(n_bins, dtype, states.device)
    expected = torch.bucketize(states, boundaries, right=True)
    assert bin_index(states[None], n_bins).equal(expected[None])
    assert bin_index(states[:, None], n_bins).equal(expected[:, None])
    assert bin_index(states, n_bins).equal(expected)


def test_more_states_than_a_block(monkeypatch):
    states = torch.rand(33, 40)
    whole = bin_index(states, 500)
    monkeypatch.setattr(histogram, "_BLOCK", 100)
    assert bin_index(states, 500).equal(whole)
    assert bin_index(states.t(), 500).equal(whole.t())


def test_no_states():
    assert bin_index(torch.rand(0, 4), 50).shape == (0, 4)
    assert bin_index(torch.rand(4, 0), 50).shape == (4, 0)
