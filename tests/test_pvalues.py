"""p-values, thresholds and groups against their definitions and by simulation."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from nac_openood import NACError
from nac_openood.core.pvalues import PValues


def scores(n, seed=0):
    return np.random.RandomState(seed).randn(n)


def oracle(c, x):
    return np.array([(1 + (c <= value).sum()) / (len(c) + 1) for value in x])


@pytest.mark.parametrize("n", [1, 2, 19, 20, 1000])
@pytest.mark.parametrize("ties", [False, True])
def test_p_values_are_ranks(n, ties):
    c = np.round(scores(n), 0 if ties else 9)
    x = np.concatenate([np.linspace(-8, 8, 33), c[:10]])
    assert PValues(c)(torch.tensor(x)).tolist() == oracle(c, x).tolist()
    assert PValues(c)(torch.tensor([float("nan"), -math.inf])).isnan().tolist() == [True, False]


@pytest.mark.parametrize("n", [18, 19, 39, 1000])
@pytest.mark.parametrize("ties", [False, True])
def test_decisions_are_those_of_the_p_value(n, ties):
    c = np.round(scores(n, 1), 0 if ties else 9)
    x = torch.tensor(np.concatenate([np.linspace(-4, 4, 99), c]))
    pvalues = PValues(c, alpha=0.05)
    assert torch.equal(pvalues.accepts(x), pvalues(x) > 0.05)
    assert torch.equal(pvalues.accepts(x), x >= pvalues.threshold)
    assert (pvalues.threshold == -math.inf) is (n == 18)
    assert float(pvalues.least[0]) == 1 / (n + 1)


def test_broken_scores_and_none_are_refused():
    with pytest.raises(NACError, match="no held-out samples"):
        PValues([])
    with pytest.raises(NACError, match="1 of 16 held-out scores are NaN or Inf"):
        PValues(np.append(scores(15), np.nan))


# -- for this calibration set --------------------------------------------------------------


def simes(n, confidence):
    """Equation 11 of Bates et al. (2023), literally: b(1) to b(n)."""
    k, delta = max(1, n // 2), 1 - confidence
    found = []
    for m in range(1, n + 1):
        i = n + 1 - m
        ratio = math.prod((i - j) / (n - j) for j in range(k)) if i >= k else 0.0
        found.append(1 - delta ** (1 / k) * ratio ** (1 / k))
    return found


@pytest.mark.parametrize("n", [1, 2, 7, 40])
@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_conditional_p_values_are_adjusted_by_simes(n, confidence):
    pvalues = PValues(np.arange(n), confidence=confidence)
    below = torch.arange(n + 1) - 0.5  # 0 to n scores are lower
    np.testing.assert_allclose(pvalues(below).numpy(), [*simes(n, confidence), 1.0], rtol=1e-12)


@pytest.mark.parametrize(("n", "alpha", "confidence"), [(59, 0.05, 0.95), (58, 0.05, 0.95), (500, 0.1, 0.9)])  # fmt: skip
def test_the_conditional_threshold_is_a_tolerance_limit(n, alpha, confidence):
    pvalues = PValues(np.arange(1.0, n + 1), alpha=alpha, confidence=confidence)
    good = [k for k in range(1, n + 1) if stats.beta.cdf(alpha, k, n + 1 - k) >= confidence]
    assert pvalues.threshold == (max(good) if good else -math.inf)
    # the textbook's 59 samples for 95 % confidence of 95 % content
    assert (pvalues.threshold == -math.inf) is (n == 58)


def test_a_confidence_near_one_is_no_alarm_rather_than_many():
    """The probability of at least 0 alarms is 1, which a sum of many terms may round down."""
    assert PValues(scores(1000), confidence=1 - 1e-13).threshold == -math.inf


# -- by class ------------------------------------------------------------------------------


def test_samples_are_compared_with_those_of_their_class():
    c = torch.tensor(scores(300, 2))
    classes = torch.arange(300) % 3
    pvalues = PValues(c, classes, per_class=True)
    x, of = torch.tensor(scores(60, 3)), torch.arange(60) % 3
    wanted = [oracle(c[classes == k].numpy(), [v])[0] for k, v in zip(of.tolist(), x.tolist())]
    assert pvalues(x, of).tolist() == wanted
    assert pvalues.threshold is None
    assert torch.equal(pvalues.accepts(x, of), pvalues(x, of) > 0.05)
    with pytest.raises(NACError, match="need the predicted class"):
        pvalues(x)


def test_rare_classes_are_joined_until_they_are_enough():
    counts = {0: 100, 1: 5, 2: 8, 3: 19, 4: 18}
    classes = torch.cat([torch.full((n,), k) for k, n in counts.items()])
    c = torch.tensor(scores(len(classes), 4))
    pvalues = PValues(c, classes, per_class=True, alpha=0.05)  # 20 with the new one
    x = torch.tensor([0.1] * 6)

    def of(*names):
        return oracle(c[torch.isin(classes, torch.tensor(names))].numpy(), [0.1])[0]

    # with the new sample, class 3 has 20; without it, it is one of the rare ones
    wanted = [of(0), of(1, 2, 3, 4), of(1, 2, 3, 4), of(3), of(1, 2, 3, 4), of(1, 2, 3, 4)]
    assert pvalues(x, torch.tensor([0, 1, 2, 3, 4, 77])).tolist() == wanted


def test_the_smallest_of_large_classes_join_a_single_rare_one():
    classes = torch.tensor([0] * 100 + [1] * 30 + [2] * 3)
    c = torch.tensor(scores(133, 5))
    pvalues = PValues(c, classes, per_class=True)
    with_rare = oracle(c[classes > 0].numpy(), [0.0])[0]
    assert pvalues(torch.zeros(1), torch.tensor([2])).item() == with_rare
    # classes that were never seen do so too, and add no group of their own
    assert pvalues(torch.zeros(1), torch.tensor([3])).item() == with_rare
    assert sorted(pvalues.sizes) == [33, 100]
    own = oracle(c[classes == 1].numpy(), [0.0])[0]
    # a new sample of class 1 joins, too: which classes do depends on it like on any other
    assert pvalues(torch.zeros(1), torch.tensor([1])).item() in (own, with_rare)


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("n", [16, 50, 300])
def test_false_alarms_stay_at_or_below_every_level(n, per_class):
    """With ties and heavy tails; by class if there are enough, and else for joined classes."""
    draw, times = np.random.RandomState(n), 1500
    share = [0.62, 0.3, 0.05, 0.03]
    levels, alarms = np.array([0.3, 0.1, 0.05, 0.01]), np.zeros((3, 4))
    tested = np.zeros(3)
    for _ in range(times):
        classes = torch.from_numpy(draw.choice(4, n + 1, p=share))
        s = torch.from_numpy(np.round(draw.standard_t(2, n + 1), 1)) * (1 + classes) - 3 * classes
        p = PValues(s[:n], classes[:n], per_class=per_class)(s[n:], classes[n:]).item()
        of = min(classes[n].item(), 2) if per_class and n == 300 else 0
        tested[of] += 1
        alarms[of] += p <= levels
    for count, found in zip(tested, alarms):
        if count:
            error = np.sqrt(levels * (1 - levels) / count)
            assert (found / count <= levels + 3.5 * error).all()
