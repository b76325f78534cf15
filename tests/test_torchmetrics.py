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


@pytest.mark.parametrize(("seed", "decimals"), [(0, 9), (1, 9), (2, 1), (3, 1)])
def test_metrics_are_those_of_torchmetrics(seed, decimals):
    rng = np.random.default_rng(seed)
    inside, outside = (
        np.clip(rng.normal(mean, 0.2, n), 0, 1).round(decimals)
        for mean, n in ((0.6, 230), (0.4, 170))
    )
    found, score = ood_metrics(inside, outside), torch.from_numpy(np.r_[inside, outside])
    is_id = (torch.arange(len(score)) < len(inside)).long()
    wanted = float(binary_auroc(score, is_id))
    assert float(auroc(inside, outside)) == pytest.approx(wanted, abs=1e-6)
    assert found["AUROC"] == pytest.approx(100 * wanted, abs=1e-4)
    for positive, given in (("IN", (score, is_id)), ("OUT", (1 - score, 1 - is_id))):
        precision, recall, _ = binary_precision_recall_curve(*given)
        area = 100 * float(auc(recall, precision))
        assert found[f"AUPR_{positive}"] == pytest.approx(area, abs=1e-3)
        fpr, tpr, _ = binary_roc(*given)
        rate = 100 * float(fpr[tpr >= 0.95 - 1e-9].min())
        name = "FPR@95_IN" if positive == "IN" else "FPR@95"
        assert found[name] == pytest.approx(rate, abs=1e-4)
