"""The sigmoid of neuron states: the same bits on every device and in batches of every size."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nac_openood.core.layer_config import sigmoid


def rounded(x):
    """Every step in double precision, rounded to float32 afterwards."""
    with np.errstate(over="ignore"):
        power = np.exp(-x.astype(np.float64)).astype(np.float32)
    return np.float32(1) / (np.float32(1) + power)


def arguments(n=100_000):
    draw = torch.Generator().manual_seed(0)
    sizes = torch.tensor([1e-8, 1e-4, 1.0, 30.0]).repeat(n // 4)
    return torch.randn(n, generator=draw) * sizes


def test_every_step_is_correctly_rounded():
    x = arguments()
    np.testing.assert_array_equal(sigmoid(x).numpy(), rounded(x.numpy()))


@pytest.mark.parametrize("size", [1, 3, 7, 16, 1000])
def test_batches_of_any_size_give_the_same_states(size):
    x = arguments(8000)
    assert torch.equal(torch.cat([sigmoid(part) for part in x.split(size)]), sigmoid(x))


def test_a_dead_neuron_is_at_one_half_and_ends_are_exact():
    x = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan")])
    found = sigmoid(x)
    assert found[:4].tolist() == [0.5, 0.5, 1.0, 0.0]
    assert bool(found[4].isnan())


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=20))
def test_larger_arguments_have_no_smaller_states(values):
    states = sigmoid(torch.tensor(sorted(values)))
    assert bool((states.diff() >= 0).all())
