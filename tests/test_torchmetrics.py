"""The metrics of the package are those of torchmetrics, also where scores are tied."""

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import (
    binary_auroc,
    binary_precision_recall_curve,
    binary_roc,
)
from torchmetrics.utilities.compute import auc

from nac_openood.benchmark.run.results import ood_metrics
from nac_openood.core.metrics import auroc


def drawn(seed, tied):
    rng = np.random.default_rng(seed)
    scores = rng.normal(0.6, 0.2, 230), rng.normal(0.4, 0.2, 170)
    scores = [np.clip(part, 0, 1) for part in scores]
    return [np.round(part, 1) for part in scores] if tied else scores


@pytest.fixture(params=[(0, False), (1, False), (2, True), (3, True)])
def scores(request):
    return drawn(*request.param)


def joined(inside, outside, positive):
    """Scores and labels for torchmetrics, as probabilities of the positive class."""
    score = torch.from_numpy(np.concatenate([inside, outside]))
    is_id = torch.arange(len(score)) < len(inside)
    return (score, is_id.long()) if positive == "ID" else (1 - score, (~is_id).long())


def test_auroc(scores):
    wanted = float(binary_auroc(*joined(*scores, "ID")))
    assert float(auroc(*scores)) == pytest.approx(wanted, abs=1e-6)
    assert ood_metrics(*scores)["AUROC"] == pytest.approx(100 * wanted, abs=1e-4)


@pytest.mark.parametrize(("name", "positive"), [("AUPR_IN", "ID"), ("AUPR_OUT", "OOD")])
def test_area_under_precision_and_recall(scores, name, positive):
    precision, recall, _ = binary_precision_recall_curve(*joined(*scores, positive))
    wanted = 100 * float(auc(recall, precision))
    assert ood_metrics(*scores)[name] == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize(("name", "positive"), [("FPR@95_IN", "ID"), ("FPR@95", "OOD")])
def test_false_positives_at_95_percent(scores, name, positive):
    fpr, tpr, _ = binary_roc(*joined(*scores, positive))
    reached = tpr >= 0.95 - 1e-9
    wanted = 100 * float(fpr[reached].min())
    assert ood_metrics(*scores)[name] == pytest.approx(wanted, abs=1e-4)
