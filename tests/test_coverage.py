"""Reference NAC: its states, the same bits in batches of every size, and its scores."""

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nac_openood import Coverage, LayerConfig, NACError, NotFittedError
from nac_openood.core.layer_config import sigmoid

CONFIGS = {
    "deep": LayerConfig(n_bins=50, full_count=3, steepness=10.0, weight=2.0),
    "shallow": LayerConfig(n_bins=500, full_count=2, steepness=0.5),
}


def readings(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    make = lambda width: torch.randn(n, width, generator=generator)  # noqa: E731
    result = {"deep": (make(5), make(5)), "shallow": (make(3), make(3))}
    result["deep"][0][:, 0] = 0  # a dead neuron
    return result


def test_score_is_the_weighted_mean_of_literal_layer_scores():
    coverage = Coverage(CONFIGS)
    fit, test = readings(40), readings(9, seed=1)
    coverage.update(fit)
    expected = 0
    for name, config in CONFIGS.items():
        pair = fit[name], test[name]
        states = [torch.sigmoid(config.steepness * (z * g)).numpy() for z, g in pair]
        scores = oracle.scores(*states, config.n_bins, config.full_count)
        expected = expected + config.weight * scores
    np.testing.assert_allclose(coverage.score(test).numpy(), expected / 3, rtol=1e-12)


@pytest.mark.parametrize("state", ["output", "gradient"])
def test_ablations_use_one_reading_alone(state):
    config = LayerConfig(state=state, steepness=1.0)
    coverage = Coverage({"deep": config})
    z, g = readings(30)["deep"]
    used, other = (z, g) if state == "output" else (g, z)
    swap = (used, torch.rand_like(other)) if state == "output" else (torch.rand_like(other), used)
    coverage.update({"deep": (z, g)})
    assert torch.equal(coverage.score({"deep": (z, g)}), coverage.score({"deep": swap}))


def test_merging_is_fitting_on_both():
    first, second, both = (Coverage(CONFIGS) for _ in range(3))
    first.update(readings(10))
    second.update(readings(7, seed=2))
    both.update(readings(10))
    both.update(readings(7, seed=2))
    first.merge(second)
    test = readings(6, seed=3)
    assert first.n_samples == 17
    assert torch.equal(first.score(test), both.score(test))
    empty = Coverage(CONFIGS)
    empty.merge(first)
    assert torch.equal(empty.score(test), both.score(test))
    empty.update(readings(1))
    assert first.n_samples == 17, "a merge must not share counts"
    with pytest.raises(NACError, match="different layers or settings"):
        first.merge(Coverage({"deep": LayerConfig()}))


def test_unfitted():
    with pytest.raises(NotFittedError, match="nothing was counted"):
        Coverage(CONFIGS).score(readings(2))


def test_bad_readings():
    coverage = Coverage(CONFIGS)
    with pytest.raises(NACError, match="readings of layer 'deep' are missing"):
        coverage.update({"shallow": readings(2)["shallow"]})
    with pytest.raises(NACError, match="no layers given"):
        Coverage({})
    with pytest.raises(NACError, match="weights sum to zero"):
        Coverage({"deep": LayerConfig(weight=0.0)})


# -- states


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
