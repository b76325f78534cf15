"""NACOutlierDetector keeps scikit-learn's promises, and finds outliers."""

import pickle

import numpy as np
import pytest
from conftest import percent
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from nac_openood import NACError, NACOutlierDetector

#: scikit-learn's checks that fit on fewer samples than p-values can be taken against.
TOO_SMALL = {
    "check_fit2d_1feature": 10,
    "check_n_features_in_after_fitting": 15,
    "check_estimators_nan_inf": 10,
    "check_classifier_data_not_an_array": 12,
}


def excused(estimator):
    return {name: f"it fits on {n} samples; 16 are needed" for name, n in TOO_SMALL.items()}


@parametrize_with_checks([NACOutlierDetector()], expected_failed_checks=excused)
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    images = load_digits().data
    train, test = train_test_split(images, random_state=0)
    noise = np.random.default_rng(0).permuted(test, axis=1)  # the same values, elsewhere
    return train, test, noise


@pytest.fixture(scope="module")
def fitted(digits):
    return NACOutlierDetector().fit(digits[0])


def test_it_finds_outliers(digits, fitted):
    _, test, noise = digits
    assert percent(fitted.score_samples(test), fitted.score_samples(noise)) > 99
    assert (fitted.predict(noise) == -1).mean() > 0.95


def test_about_five_percent_of_new_data_are_rejected(digits, fitted):
    test = digits[1]
    assert 0.02 < (fitted.predict(test) == -1).mean() < 0.09
    p = fitted.p_value(test)
    assert 0.02 < (p <= 0.05).mean() < 0.09 and 0.4 < (p <= 0.5).mean() < 0.6
    expected = fitted.score_samples(test) - fitted.offset_
    assert np.array_equal(fitted.decision_function(test), expected)


@pytest.mark.parametrize("n", [54, 55, 60, 400])
def test_decisions_are_those_of_the_p_values(digits, n):
    train, test = digits[0][:n], digits[1]
    detector = NACOutlierDetector().fit(train)
    out, p = detector.predict(test) == -1, detector.p_value(test)
    assert np.array_equal(out, p <= (0.05 if n > 54 else 1 / 19))


def test_contamination_is_the_share_of_rejected_training_rows(digits):
    train = digits[0][:400]
    detector = NACOutlierDetector(contamination=0.1).fit(train)
    assert (detector.predict(train) == -1).sum() == pytest.approx(40, abs=2)


def test_it_is_cloned_pickled_and_searched(digits, fitted):
    train, test, _ = digits
    assert clone(fitted).get_params() == {"contamination": "auto", "n_folds": 5}
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict(test), fitted.predict(test))
    piped = make_pipeline(FunctionTransformer(), NACOutlierDetector())
    grid = {"nacoutlierdetector__n_folds": [3, 5]}

    def kept(estimator, X, y=None):
        return (estimator.predict(X) == 1).mean()

    found = GridSearchCV(piped, grid, scoring=kept, cv=2).fit(train[:200])
    assert found.best_score_ > 0.7


def test_features_of_any_scale(digits):
    varied = digits[0].std(axis=0) > 2
    train, test = (part[:300, varied] for part in digits[:2])
    scale = np.logspace(-8, 8, train.shape[1])
    plain = NACOutlierDetector().fit(train).score_samples(test)
    scaled = NACOutlierDetector().fit(train * scale).score_samples(test * scale)
    assert np.corrcoef(plain, scaled)[0, 1] > 0.999


@pytest.mark.parametrize("contamination", [0, 0.6, -1, "some", None])
def test_wrong_contamination(contamination, digits):
    with pytest.raises(NACError, match=r"`contamination` must be 'auto' or a number above 0"):
        NACOutlierDetector(contamination=contamination).fit(digits[0][:50])


def test_what_scikit_learn_refuses(digits, fitted):
    """What the checks excused above would show."""
    broken = digits[0][:50].copy()
    broken[3, 4] = np.nan
    for call in (NACOutlierDetector().fit, fitted.predict, fitted.score_samples):
        with pytest.raises(ValueError, match="Input X contains NaN"):
            call(broken)
    with pytest.raises(ValueError, match="X has 10 features, but NACOutlierDetector"):
        fitted.predict(digits[1][:, :10])


def test_wrong_folds_and_too_few_rows(digits):
    with pytest.raises(NACError, match="n_folds"):
        NACOutlierDetector(n_folds=1).fit(digits[0][:50])
    with pytest.raises(NACError, match="at least 16 samples, got 15 sample"):
        NACOutlierDetector().fit(digits[0][:15])
