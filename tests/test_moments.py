"""Moments that add up exactly, and the distance from a Gaussian made of them."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nac_openood.core.plus_layer import Gaussian, Moments

CPU = torch.device("cpu")
STEP = 2.0**-28


def of(values):
    moments = Moments.empty(values.shape[1], CPU)
    moments.update(values)
    return moments


def literal(values):
    """The sum of products in Python's integers, which have no limit."""
    rows = [[2**28, *(round(v / STEP) for v in row)] for row in values.double().tolist()]
    size = len(rows[0])
    return [[sum(row[i] * row[j] for row in rows) for j in range(size)] for i in range(size)]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([1e-4, 1.0, 300.0, 2.0**15]))
def test_sums_of_products_are_exact(seed, scale):
    draw = torch.Generator().manual_seed(seed)
    values = (torch.randn(9, 3, generator=draw) * scale).clamp(-(2.0**15), 2.0**15)
    found, wanted = of(values), literal(values)
    for i in range(4):
        for j in range(4):
            exact = int(found.high[i, j]) * 2**45 + int(found.low[i, j])
            assert exact == wanted[i][j] and 0 <= int(found.low[i, j]) < 2**45


def test_shards_add_up_to_the_bit():
    values = torch.randn(1000, 5, generator=torch.Generator().manual_seed(0)) * 40
    whole, parts = of(values), [of(part) for part in values.split(37)]
    shards = Moments(sum(p.high for p in parts), sum(p.low for p in parts))
    assert torch.equal(whole.high, shards.high) and torch.equal(whole.low, shards.low)
    assert whole.products()[0, 0] == 1000


def test_constant_neurons_few_samples_and_extremes():
    constant = Gaussian(of(torch.ones(50, 3)))
    assert constant.score(torch.ones(2, 3)).tolist() == [0.0, 0.0]
    assert (constant.score(torch.zeros(1, 3)) < -1e9).all()
    assert Gaussian(of(torch.randn(5, 40))).score(torch.randn(7, 40)).isfinite().all()
    extreme = of(torch.tensor([[float("inf"), -float("inf"), float("nan"), 1e30]]))
    assert extreme.products()[0].tolist() == [1, 2.0**15, -(2.0**15), 0, 2.0**15]
