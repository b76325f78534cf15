import numpy as np
import oracle
import pytest
import torch

from nac_openood import Coverage, LayerConfig, NACError, NotFittedError

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
        states = [
            torch.sigmoid(config.steepness * (z * g)).numpy() for z, g in (fit[name], test[name])
        ]
        expected = expected + config.weight * oracle.scores(
            *states, config.n_bins, config.full_count
        )
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


def test_merge_refuses_other_settings():
    with pytest.raises(NACError, match="different layers or settings"):
        Coverage(CONFIGS).merge(Coverage({"deep": LayerConfig()}))


def test_unfitted():
    with pytest.raises(NotFittedError, match="nothing was counted"):
        Coverage(CONFIGS).score(readings(2))
    with pytest.raises(NotFittedError, match="nothing was counted"):
        Coverage(CONFIGS).check()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_not_finite_readings_are_counted_in_fit_and_nan_in_score(bad):
    coverage = Coverage(CONFIGS)
    coverage.update(readings(10))
    broken = readings(5, seed=1)
    broken["shallow"][1][3, 2] = bad
    score = coverage.score(broken)
    assert score.isnan().tolist() == [False, False, False, True, False]
    coverage.update(broken)
    with pytest.raises(NACError, match=r"'shallow': 1 of 15 fitting samples have NaN or Inf"):
        coverage.check()


def test_bad_readings():
    coverage = Coverage(CONFIGS)
    with pytest.raises(NACError, match="readings of layer 'deep' are missing"):
        coverage.update({"shallow": readings(2)["shallow"]})
    with pytest.raises(NACError, match=r"one shape \[batch, neurons\]"):
        coverage.update({"deep": (torch.rand(2, 3), torch.rand(2, 4))})
    with pytest.raises(NACError, match="no layers given"):
        Coverage({})
    with pytest.raises(NACError, match="weights sum to zero"):
        Coverage({"deep": LayerConfig(weight=0.0)})
