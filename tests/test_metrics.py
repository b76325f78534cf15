import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from nac_openood import NACError
from nac_openood.benchmark.run.results import ood_metrics
from nac_openood.core import metrics
from nac_openood.core.metrics import auroc, fpr_in_at, joined_fpr_at


def fpr_at(id_scores, ood_scores, tpr=0.95):
    """`joined_fpr_at` of scores that are not joined."""
    joined, n_id, shape = metrics._join(id_scores, ood_scores)
    return joined_fpr_at(joined, n_id, tpr).reshape(shape)


def openood_metrics(id_scores, ood_scores):
    """AUROC and FPR@95 as OpenOOD's evaluators/metrics.py words them."""
    conf = np.concatenate([id_scores, ood_scores])
    ood_indicator = np.concatenate([np.zeros(len(id_scores)), np.ones(len(ood_scores))])
    fpr_list, tpr_list, _ = sklearn_metrics.roc_curve(ood_indicator, -conf)
    return sklearn_metrics.auc(fpr_list, tpr_list), fpr_list[np.argmax(tpr_list >= 0.95)]


def accepted_ood(inside, outside):
    """The share of OOD scores from the highest threshold on that keeps 95 % of ID scores."""
    enough = [t for t in inside if 20 * (inside >= t).sum() >= 19 * len(inside)]
    return float((outside >= max(enough)).mean())


def check(id_scores, ood_scores):
    aurocs, fprs = auroc(id_scores, ood_scores), fpr_at(id_scores, ood_scores)
    accepted = fpr_in_at(id_scores, ood_scores)
    assert aurocs.dtype == fprs.dtype == torch.float64
    for row, (inside, outside) in enumerate(zip(id_scores, ood_scores)):
        area, fpr = openood_metrics(inside, outside)
        assert abs(float(aurocs[row]) - area) <= 1e-12
        assert float(fprs[row]) == fpr
        assert float(accepted[row]) == accepted_ood(inside, outside)


@settings(deadline=None, max_examples=150)
@given(
    st.integers(1, 4), st.integers(1, 40), st.integers(1, 40), st.integers(1, 30), st.booleans(),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_equals_scikit_learn_and_openood(rows, n_id, n_ood, levels, signed, seed):
    """Few levels make many ties, straight pieces of the curve among them."""
    draw = np.random.default_rng(seed)
    low, scale = (-levels if signed else 0), (3.7 if signed else 1 / levels)
    check(
        draw.integers(low, levels + 1, (rows, n_id)) * scale,
        draw.integers(low, levels + 1, (rows, n_ood)) * scale,
    )


@pytest.mark.parametrize("spread", [1.0, 1e-9, -5.0, 1e300])
def test_continuous_scores_of_any_range(spread):
    draw = np.random.default_rng(0)
    check(draw.random((3, 200)) * spread, draw.random((3, 150)) * spread)


def test_more_candidates_than_a_chunk(monkeypatch):
    draw = np.random.default_rng(1)
    inside, outside = draw.integers(0, 9, (50, 20)) / 9, draw.integers(0, 9, (50, 30)) / 9
    whole = auroc(inside, outside), fpr_at(inside, outside)
    monkeypatch.setattr(metrics, "_CPU_CHUNK", 100)
    assert auroc(inside, outside).equal(whole[0])
    assert fpr_at(inside, outside).equal(whole[1])


def test_by_hand():
    assert float(auroc([0.5, 0.9], [0.5, 0.1])) == 3.5 / 4
    assert float(fpr_at([0.5, 0.9], [0.5, 0.1])) == 0.5
    assert auroc([[1.0], [0.0], [0.5]], [[0.0], [1.0], [0.5]]).tolist() == [1.0, 0.0, 0.5]
    assert float(auroc([0.0], [-0.0])) == float(auroc([-0.0], [0.0])) == 0.5


@pytest.mark.parametrize(
    ("inside", "outside", "message"),
    [
        (torch.rand(2, 0), torch.rand(2, 3), "no ID scores"),
        (torch.rand(2, 3), torch.rand(2, 0), "no OOD scores"),
        (torch.tensor([[1.0, float("nan")]]), torch.rand(1, 2), "ID scores contain NaN"),
        (torch.rand(1, 2), torch.tensor([[float("inf")]]), "OOD scores contain NaN or Inf"),
        (torch.rand(2, 3), torch.rand(3, 3), "expected scores of shapes"),
    ],
)
def test_bad_scores(inside, outside, message):
    for metric in (auroc, fpr_at):
        with pytest.raises(NACError, match=message):
            metric(inside, outside)


@pytest.mark.parametrize(("seed", "decimals"), [(0, 9), (1, 9), (2, 1), (3, 1)])
def test_metrics_are_those_of_torchmetrics(seed, decimals):
    theirs = pytest.importorskip("torchmetrics.functional.classification")
    rng = np.random.default_rng(seed)
    inside, outside = (
        np.clip(rng.normal(mean, 0.2, n), 0, 1).round(decimals)
        for mean, n in ((0.6, 230), (0.4, 170))
    )
    found, score = ood_metrics(inside, outside), torch.from_numpy(np.r_[inside, outside])
    is_id = (torch.arange(len(score)) < len(inside)).long()
    wanted = float(theirs.binary_auroc(score, is_id))
    assert float(auroc(inside, outside)) == pytest.approx(wanted, abs=1e-6)
    assert found["AUROC"] == pytest.approx(100 * wanted, abs=1e-4)
    for positive, samples in (("IN", (score, is_id)), ("OUT", (1 - score, 1 - is_id))):
        precision, recall, _ = theirs.binary_precision_recall_curve(*samples)
        area = -100 * float(torch.trapezoid(precision, recall))
        assert found[f"AUPR_{positive}"] == pytest.approx(area, abs=1e-3)
        fpr, tpr, _ = theirs.binary_roc(*samples)
        rate = 100 * float(fpr[tpr >= 0.95 - 1e-9].min())
        name = "FPR@95_IN" if positive == "IN" else "FPR@95"
        assert found[name] == pytest.approx(rate, abs=1e-4)
