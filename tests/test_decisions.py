"""Calibration, guarantees, false alarms and selections of a detector."""

import math
import warnings

import numpy as np
import pytest
import torch
from conftest import noise
from scipy import stats

from nac_openood import NACDetector, NACError
from nac_openood.core.pvalues import PValues
from nac_openood.detector.decisions import false_alarm_rates, select

LAYERS = ["avgpool", "layer2"]


@pytest.fixture(params=["nac", "nac_plus"])
def fitted(request, small_net):
    layers = LAYERS if request.param == "nac" else "auto"
    return NACDetector(small_net, layers, rule=request.param).fit(noise(200))


def images(n, seed, scale=1.0):
    return torch.cat([x for x, _ in noise(n, seed, scale=scale)])


@pytest.mark.parametrize("how", [{}, {"confidence": 0.9}, {"per_class": True}])
def test_every_way_gives_the_same_p_values_and_files_keep_them(fitted, small_net, tmp_path, how):
    fitted.calibrate(noise(400, 1), tpr=0.8, **how)
    x = images(60, 2)
    p = fitted.p_value(x)
    assert torch.equal(fitted.judge(x).p_value, p)
    assert fitted.select(noise(60, 2)).p_value.tolist() == p.tolist()
    assert torch.equal(torch.from_numpy(fitted.drift(x).p_values), p)
    fitted.save(tmp_path / "x")
    again = NACDetector.load(tmp_path / "x", small_net)
    assert torch.equal(again.p_value(x), p) and again.guarantee() == fitted.guarantee()
    assert torch.equal(again.predict(x), fitted.predict(x))
    explained = [found.p_value for found in again.explain(x[:3])]
    assert explained == p[:3].tolist()
    if "confidence" not in how:
        assert torch.equal(fitted.predict(x), p > 0.2)


def test_guarantees_are_in_words(fitted):
    assert fitted.guarantee().startswith("No guarantee: this detector is not calibrated")
    n = 120 if fitted.rule == "nac" else 60  # half of them shape the score of NAC+
    text = fitted.calibrate(noise(120, 1)).guarantee()
    assert "at most a share p of new in-distribution samples has a p-value of p or less" in text
    assert "`predict` calls at most 5 % out-of-distribution" in text
    assert f"Guaranteed, on average over calibration sets ({n} samples)" in text
    text = fitted.calibrate(noise(120, 1), tpr=0.9, confidence=0.95).guarantee()
    assert "at most 10 %" in text and "with a confidence of 0.95 for this calibration set" in text
    assert "of every predicted class" in fitted.calibrate(noise(120, 1), per_class=True).guarantee()


def test_a_threshold_of_the_users_own_has_no_guarantee(fitted):
    fitted.calibrate(noise(120, 1))
    fitted.threshold_ += 1.0
    text = fitted.guarantee()
    assert "has a p-value of p or less (but `predict` has another threshold" in text
    assert "`predict` calls" not in text


def test_too_few_samples_for_an_alarm_are_reported(fitted):
    n = 18 if fitted.rule == "nac" else 36
    with pytest.warns(UserWarning, match="at p <= 0.05: it is compared with 18 .* and 19 are ne"):
        fitted.calibrate(noise(n, 1))
    assert fitted.threshold_ == -math.inf
    with pytest.warns(UserWarning, match="no sample can be called out-of-distribution"):
        assert fitted.predict(images(20, 2, 9.0)).all()
    with pytest.warns(UserWarning, match="and 90 are needed"):
        fitted.calibrate(noise(n, 1), confidence=0.9)
    with pytest.warns(UserWarning, match="no sample of [1-4] of [1-4] groups of classes can be"):
        fitted.calibrate(noise(n, 1), per_class=True)
    size = 90 if fitted.rule == "nac" else 180
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted.calibrate(noise(size, 1), confidence=0.9)


def test_too_few_fitting_samples_are_reported_by_fit(small_net):
    detector = NACDetector(small_net, "auto", rule="nac_plus")
    with pytest.warns(UserWarning, match="fitted on 120 samples, of which 12 are held out: too"):
        detector.fit(noise(120))
    uncalibrated = pytest.warns(UserWarning, match="NAC. was not calibrated")
    with uncalibrated, pytest.raises(NACError, match="at least 16 held-out samples, got 12"):
        detector.score(images(2, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        detector.fit(noise(160))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tpr": 1.0}, "`tpr` must lie between 0 and 1, got 1.0. Usual is 0.95"),
        ({"tpr": "a"}, "`tpr` must lie"),
        ({"confidence": 1}, "`confidence` must lie between 0 and 1, got 1. Usual is 0.9"),
    ],
)
def test_wrong_arguments_are_refused(fitted, wrong, message):
    with pytest.raises(NACError, match=message):
        fitted.calibrate(noise(120, 1), **wrong)


@pytest.mark.parametrize(
    "rule, message",
    [
        ("nac", "all 40 .* or settings, or rule='nac_plus'.$"),
        ("nac_plus", "all 20 .* other layers.$"),
    ],
)
def test_scores_that_are_all_equal_are_refused(small_net, rule, message):
    detector = NACDetector(small_net, LAYERS, rule=rule).fit(noise(200))
    same = [torch.zeros(4, 3, 9, 9)] * 10
    with pytest.raises(NACError, match=message):
        detector.calibrate(same)


# -- false alarms --------------------------------------------------------------------------


def test_the_expected_range_is_that_of_both_samples():
    """Given n calibration scores, alarms among m samples are beta-binomial."""
    pvalues = PValues(torch.randn(500))
    (alarms,) = false_alarm_rates(torch.rand(2000), [0.05], pvalues)
    wanted = stats.betabinom(2000, 25, 476).ppf([0.025, 0.975]) / 2000
    assert alarms.expected == pytest.approx(tuple(wanted), abs=0.002)


@pytest.mark.parametrize("per_class", [False, True])
def test_false_alarms_are_in_the_range_as_often_as_it_says(per_class):
    draw, inside, times = torch.Generator().manual_seed(0), 0, 300
    for _ in range(times):
        scores, classes = torch.randn(800, generator=draw), torch.arange(800) % 2
        pvalues = PValues(scores[:300], classes[:300], per_class=per_class)
        p = pvalues(scores[300:], classes[300:])
        (alarms,) = false_alarm_rates(p, [0.1], pvalues, classes[300:])
        inside += alarms.expected[0] <= alarms.rate <= alarms.expected[1]
    assert 0.91 < inside / times < 0.99


# -- selections ----------------------------------------------------------------------------


def benjamini_hochberg(p, fdr):
    """The procedure as it is taught: the largest k with p(k) <= k fdr / m."""
    ordered = np.sort(p)
    passed = np.nonzero(ordered <= fdr * np.arange(1, len(p) + 1) / len(p))[0]
    return p <= ordered[passed[-1]] if len(passed) else np.zeros(len(p), bool)


def test_selections_are_benjamini_and_hochbergs():
    draw = np.random.RandomState(0)
    pvalues = PValues(draw.randn(999))
    for shift in (0.0, 2.0, 6.0):
        p = pvalues(torch.tensor(np.append(draw.randn(300), draw.randn(30) - shift))).numpy()
        found = select(p, 0.1, pvalues)
        assert found.out.tolist() == benjamini_hochberg(p, 0.1).tolist() and found.fewest == 4
    assert found.out[300:].mean() > 0.9


def test_samples_without_a_p_value_are_selected_and_none_is_no_error():
    pvalues = PValues(np.arange(50))
    found = select([math.nan, 0.9, 0.5], 0.1, pvalues)
    assert found.out.tolist() == [True, False, False]
    assert select([], 0.1, pvalues).out.tolist() == []


def test_what_can_never_be_selected_is_reported(fitted):
    pvalues = PValues(np.arange(5.0))
    with pytest.warns(UserWarning, match="nothing can be selected .* of 0.1: .* 0.167"):
        assert select([1 / 6] * 9, 0.1, pvalues).fewest > 9
    few, enough = (select([1 / 6] * k + [1.0] * (100 - k), 0.5, pvalues) for k in (33, 34))
    assert few.fewest == enough.fewest == 34
    assert not few.out.any() and enough.out.sum() == 34
    assert str(enough).startswith("34 of 100 samples are out-of-distribution")
    with pytest.raises(NACError, match="`fdr` must lie between 0 and 1, got 2. Usual is 0.1"):
        select([0.5], 2, pvalues)
    fitted.calibrate(noise(400, 1))
    mixed = torch.cat([images(40, 2), images(20, 3, 30.0)])
    if fitted.rule == "nac_plus":
        assert fitted.select(mixed, fdr=0.2).out[40:].mean() > 0.8
