"""Calibration errors and confidences, against torchmetrics and scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression
from torchmetrics.functional.classification import binary_calibration_error

from nac_openood.analysis.confidence import Bins, LogisticMap, equal_mass_bins, temperature_of
from nac_openood.errors import NACError
from nac_openood.search.advise import msp


def mixture(n_id=1200, n_ood=800, classes=10, seed=0):
    """Logits of an overconfident classifier, and which of its predictions are right."""
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=(n_id + n_ood, classes)) * 2)
    label = torch.from_numpy(rng.integers(0, classes, n_id))
    logits[torch.arange(n_id), label] += 3
    right = np.zeros(n_id + n_ood, bool)
    right[:n_id] = (logits[:n_id].argmax(dim=1) == label).numpy()
    return logits, label, right


def equal_width_bins(confidence, correct, n_bins=15):
    """The bins of torchmetrics: `[k / n, (k + 1) / n)`, the last one closed; no empty ones."""
    edges = np.linspace(0, 1, n_bins + 1)
    place = np.searchsorted(edges[1:-1], confidence, side="right")
    size = np.bincount(place, minlength=n_bins)
    sums = (np.bincount(place, values, minlength=n_bins) for values in (confidence, correct))
    return Bins(size[size > 0], *(part[size > 0] / size[size > 0] for part in sums))


def test_by_hand():
    bins = equal_mass_bins(np.array([0.9, 0.1, 0.8, 0.2, 1.0]), np.array([1, 0, 0, 1, 1]), size=2)
    assert bins.size.tolist() == [2, 3]
    assert np.allclose(bins.confidence, [0.15, 0.9]) and np.allclose(bins.accuracy, [0.5, 2 / 3])
    gaps = [0.35, 0.9 - 2 / 3]
    squares = (2 * gaps[0] ** 2 + 3 * gaps[1] ** 2) / 5
    mad = (2 * gaps[0] + 3 * gaps[1]) / 5
    assert bins.errors() == {"RMS": pytest.approx(squares**0.5), "MAD": pytest.approx(mad)}


@pytest.mark.parametrize("n_bins", [1, 10, 15])
@pytest.mark.parametrize(("norm", "metric"), [("l1", "MAD"), ("l2", "RMS")])
def test_msp_equals_torchmetrics(n_bins, norm, metric):
    logits, _, right = mixture()
    confidence = msp(logits)
    expected = binary_calibration_error(confidence, torch.from_numpy(right), n_bins, norm)
    found = equal_width_bins(confidence.numpy(), right, n_bins=n_bins).errors()
    assert found[metric] == pytest.approx(float(expected), abs=1e-6)


def test_bins_of_equal_mass_equal_those_of_scikit_learn():
    logits, _, right = mixture()
    confidence = msp(logits).numpy()
    accuracy, mean = calibration_curve(right, confidence, n_bins=20, strategy="quantile")
    bins = equal_mass_bins(confidence, right)
    assert bins.size.tolist() == [100] * 20
    assert np.allclose(bins.confidence, mean, atol=1e-12)
    assert np.allclose(bins.accuracy, accuracy, atol=1e-12)
    rms = np.sqrt(((mean - accuracy) ** 2).mean())
    assert bins.errors()["RMS"] == pytest.approx(rms, abs=1e-12)


def test_the_last_bin_takes_the_rest_and_counts():
    bins = equal_mass_bins(np.linspace(0, 1, 250), np.ones(250))
    assert bins.size.tolist() == [100, 150]
    assert bins.errors()["MAD"] == pytest.approx(0.5)


def test_ties_do_not_depend_on_the_order():
    """Half of 200 equally confident predictions are right: that is calibrated in any order."""
    right = np.repeat([1, 0], 100)
    assert equal_mass_bins(np.full(200, 0.5), right).errors()["RMS"] == 0


@pytest.mark.parametrize("wrong", [1.5, float("nan")])
def test_refuses_what_is_no_confidence(wrong):
    with pytest.raises(NACError, match="expected confidences from 0 to 1"):
        equal_mass_bins(np.array([0.5, wrong]), np.array([1, 0]))
    with pytest.raises(NACError, match="expected finite scores"):
        LogisticMap.fit(np.array([0.0, np.nan]), np.array([True, False]))


def test_temperature_undoes_a_scaling():
    logits, label, _ = mixture(n_ood=0)
    temperature = temperature_of(logits, label)
    assert temperature_of(3 * logits, label) == pytest.approx(3 * temperature, rel=1e-4)
    nearby = [temperature * f for f in (0.99, 1.0, 1.01)]
    losses = [float(torch.nn.functional.cross_entropy(logits / t, label)) for t in nearby]
    assert losses[1] < losses[0] and losses[1] < losses[2]


def test_the_logistic_map_equals_scikit_learn():
    """Soft targets are two weighted copies of every sample."""
    rng = np.random.default_rng(1)
    score = rng.normal(size=500) * 0.01 + 0.7
    right = rng.random(500) < 1 / (1 + np.exp(-(score - 0.69) * 200))
    n = int(right.sum())
    target = np.where(right, (n + 1) / (n + 2), 1 / (500 - n + 2))
    standard = ((score - score.mean()) / score.std())[:, None]
    model = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000).fit(
        np.concatenate([standard, standard]), np.repeat([1, 0], 500),
        sample_weight=np.concatenate([target, 1 - target]),
    )  # fmt: skip
    found = LogisticMap.fit(score, right)(score)
    assert np.allclose(found, model.predict_proba(standard)[:, 1], atol=1e-5)
    assert found.mean() == pytest.approx(target.mean(), abs=1e-6)


def test_a_useless_score_gives_the_accuracy_and_curves_stay_finite():
    curve = LogisticMap.fit(np.arange(100.0), np.arange(100) < 75)  # higher scores are wrong
    assert curve.slope == 0
    assert np.allclose(curve(np.array([-1e9, 0, 1e9])), 0.75, atol=0.01)
    curve = LogisticMap.fit(np.random.default_rng(0).normal(size=50), np.ones(50, bool))
    assert 0.9 < curve(np.array([0.0]))[0] < 1
