"""Bins and counts: the authors' edges to the bit, and the bin of every state."""

import json
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nac_openood import NACError
from nac_openood.core import histogram as histograms
from nac_openood.core.histogram import Histogram, bin_index, count_bins, edges

VECTORS = json.loads((Path(__file__).parent / "data" / "vectors.json").read_text())
CPU = torch.device("cpu")


def fitted(states, m):
    histogram = Histogram.empty(states.shape[1], m, CPU)
    histogram.update(states)
    return histogram


@pytest.mark.parametrize("m", ["4", "10", "50", "500"])
def test_edges_are_the_authors_edges_to_the_bit(m):
    reachable = VECTORS["edges"][m][: int(m) - 2]
    ours = edges(int(m))
    assert ours[:-1].tolist() == reachable
    assert ours[-1] == 1.0
    assert len(ours) == count_bins(int(m)) + 1
    assert edges(int(m) + 1).tolist() == ours.tolist()  # odd counts as the even number below


@pytest.mark.parametrize("m", [4, 10, 50, 500, 1000, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_edges_belong_to_the_bin_that_starts_there(m, dtype):
    states = torch.tensor(edges(m), dtype=dtype)
    at = torch.cat([states, states.nextafter(states - 1), states.nextafter(states + 1)])
    expected = oracle.membership(at.numpy()[:, None].astype(np.float64), m)[:, :, 0].argmax(axis=1)
    assert bin_index(at, m).tolist() == expected.tolist()


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
    boundaries = histograms._interior_edges(n_bins, dtype, states.device)
    expected = torch.bucketize(states, boundaries, right=True)
    assert bin_index(states[None], n_bins).equal(expected[None])
    assert bin_index(states[:, None], n_bins).equal(expected[:, None])
    assert bin_index(states, n_bins).equal(expected)


def test_more_states_than_a_block(monkeypatch):
    states = torch.rand(33, 40)
    whole = bin_index(states, 500)
    monkeypatch.setattr(histograms, "_BLOCK", 100)
    assert bin_index(states, 500).equal(whole)
    assert bin_index(states.t(), 500).equal(whole.t())
    assert bin_index(states[:0], 500).shape == (0, 40)
    assert bin_index(states[:, :0], 500).shape == (33, 0)


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: f"M{case['M']}")
def test_the_authors_counts_and_scores(case):
    fit, test = (torch.tensor(case[k], dtype=torch.float32) for k in ("fit_states", "test_states"))
    histogram = fitted(fit, case["M"])
    if case["counts"] != "omitted":  # too long for the file at M = 500
        authors = torch.tensor(case["counts"]).T  # theirs has one more bin that nothing reaches
        assert authors[:, -1].sum() == 0
        assert histogram.counts.tolist() == authors[:, :-1].long().tolist()
    scores = histogram.covered(test, case["O"]) / (case["O"] * histogram.neurons)
    np.testing.assert_allclose(scores.numpy(), case["scores"], rtol=1e-6)


# edges, their neighbours, the ends and dead neurons come up often, or nothing would test them
EDGES = [float(np.float32(e)) for e in oracle.edges(10)]
STATE = st.one_of(st.floats(0, 1, width=32), st.sampled_from([0.5, 0.0, 1.0, *EDGES]))


def states(rows):
    return hnp.arrays(np.float32, st.tuples(rows, st.just(3)), elements=STATE)


@given(
    states(st.integers(1, 30)),
    states(st.integers(1, 8)),
    st.sampled_from([4, 10, 51, 500]),
    st.integers(1, 40),
)
def test_fast_and_literal_agree(fit, test, m, full_count):
    histogram = fitted(torch.from_numpy(fit), m)
    assert histogram.counts.tolist() == oracle.counts(fit, m).tolist()
    ours = histogram.covered(torch.from_numpy(test), full_count) / (full_count * 3)
    np.testing.assert_allclose(ours.numpy(), oracle.scores(fit, test, m, full_count), rtol=1e-6)


def test_states_of_another_layer_are_refused():
    with pytest.raises(NACError, match=r"expected states of shape \[batch, 3\], got \[5, 4\]"):
        Histogram.empty(3, 50, CPU).update(torch.rand(5, 4))


@pytest.mark.parametrize("counts", [[[-1, 3]], [[1, 2]], [[2, 0, 0]], []])
def test_counts_of_another_number_of_samples_are_refused(counts):
    wrong = torch.tensor(counts, dtype=torch.int32).reshape(len(counts), -1 if counts else 2)
    with pytest.raises(NACError, match="the counts do not add up to 2 samples"):
        Histogram(wrong, n_bins=4, n_samples=2).check("counts")
    Histogram(torch.tensor([[2, 0]], dtype=torch.int32), n_bins=4, n_samples=2).check("counts")
