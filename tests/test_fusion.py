"""p-values with a tail against their formula, and each sample against the others."""

import numpy as np
import pytest
import torch

from nac_openood import NACError
from nac_openood.core.fusion import MIN_SAMPLES, TailEstimate


def oracle_p(c, x):
    t = min(0.5, max(0.05, 10 / len(c)))
    q = np.quantile(c, t)
    below = q - c[c < q]
    p = np.array([(1 + (c <= value).sum()) / (len(c) + 1) for value in x])
    if len(below):
        p = np.where(x < q, t * np.exp(-(q - x) / below.mean()), p)
    return np.maximum(p, 1e-300)


def own_p(c):
    """The p-value of each against the others."""
    return np.array([oracle_p(np.delete(c, i), c[i : i + 1])[0] for i in range(len(c))])


def scores(n, seed=0):
    return np.random.RandomState(seed).randn(n)


@pytest.mark.parametrize("n", [16, 17, 50, 199, 200, 1000])
def test_p_values_are_their_formula(n):
    c = scores(n)
    x = np.concatenate([np.linspace(-8, 3, 50), c[:10]])
    np.testing.assert_allclose(TailEstimate(c)(torch.tensor(x)).numpy(), oracle_p(c, x), rtol=1e-10)
    assert float(TailEstimate(c)(torch.tensor([-1e9]))) == pytest.approx(1e-300)
    assert TailEstimate(c)(torch.tensor([float("nan")])).isnan().all()


@pytest.mark.parametrize("n", [17, 40, 200, 201])
@pytest.mark.parametrize("ties", [False, True])
def test_left_out_equals_a_refit_without_the_sample(n, ties):
    c = np.round(scores(n, 3), 1 if ties else 9)
    np.testing.assert_allclose(TailEstimate(c).left_out().exp().numpy(), own_p(c), rtol=1e-9)


def test_equal_scores_have_no_tail():
    same = TailEstimate(np.ones(100))
    assert same(torch.tensor([1.0, 2.0])).tolist() == [1.0, 1.0]
    assert float(same(torch.tensor([0.5]))) == pytest.approx(1 / 101)
    assert same.left_out().exp().tolist() == [1.0] * 100


def test_too_few_and_broken_scores_are_refused():
    with pytest.raises(NACError, match="at least 8 held-out samples, got 7"):
        TailEstimate(scores(MIN_SAMPLES - 1))
    with pytest.raises(NACError, match="1 of 16 held-out scores are NaN or Inf"):
        TailEstimate(np.append(scores(15), np.nan))
