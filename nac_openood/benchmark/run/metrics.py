"""The numbers of a comparison, in percent.

Higher scores mean more in-distribution (ID). Two numbers are called FPR@95 in the literature:

* `FPR@95` is OpenOOD's: OOD is the positive class. It is the share of ID samples that are rejected
  at the threshold that finds 95 % of the OOD samples.
* `FPR@95_IN` is that of most papers: ID is the positive class. It is the share of OOD samples that
  are accepted at the threshold that keeps 95 % of the ID samples, which is also the threshold of
  `NACDetector.calibrate`.

They can rank methods differently. AUPR_OUT takes OOD as the positive class, AUPR_IN takes ID.
All but `FPR@95_IN` are computed as OpenOOD does it, with scikit-learn.
"""

from __future__ import annotations

from typing import Mapping, Optional

import numpy as np

from nac_openood.core.ranking import fpr_in_at
from nac_openood.errors import NACError

METRICS = ("FPR@95", "FPR@95_IN", "AUROC", "AUPR_IN", "AUPR_OUT", "ACC")
#: The names of the means over near and far sets, as in OpenOOD.
NEAR, FAR = "nearood", "farood"
#: How they are called inside a sentence, and in titles.
GROUP_WORDS = {NEAR: "near-OOD", FAR: "far-OOD"}
GROUP_NAMES = {NEAR: "Near-OOD", FAR: "Far-OOD"}


def ood_metrics(inside: np.ndarray, outside: np.ndarray) -> dict[str, float]:
    """All metrics but the accuracy, in percent, from ID and OOD scores `[samples]`."""
    from sklearn.metrics import auc, precision_recall_curve, roc_curve

    score = np.concatenate([inside, outside])
    if not np.isfinite(score).all():
        raise NACError(
            f"expected finite scores, got NaN or Inf for {int((~np.isfinite(score)).sum())} of "
            f"{len(score)} samples."
        )
    is_ood = np.concatenate([np.zeros(len(inside), int), np.ones(len(outside), int)])
    fpr, tpr, _ = roc_curve(is_ood, -score)
    found = {
        "FPR@95": fpr[np.argmax(tpr >= 0.95)],
        "FPR@95_IN": fpr_in_at(inside, outside),
        "AUROC": auc(fpr, tpr),
    }
    for name, positive, sign in (("AUPR_IN", 1 - is_ood, 1), ("AUPR_OUT", is_ood, -1)):
        precision, recall, _ = precision_recall_curve(positive, sign * score)
        found[name] = auc(recall, precision)
    return {name: 100 * float(value) for name, value in found.items()}


def metrics_by_set(
    scores: Mapping[str, np.ndarray], roles: Mapping[str, str], accuracy: Optional[float]
) -> dict[str, dict[str, float]]:
    """The metrics of every OOD set, and their means "nearood" and "farood", as in OpenOOD.

    Args:
        scores: `[samples]` by test set.
        roles: "id", "csid" (a shifted set, which counts as ID), "near" or "far" by test set.
        accuracy: ID accuracy in percent, which OpenOOD repeats for every set; None if unknown.
    """
    table: dict[str, dict[str, float]] = {}
    known = {} if accuracy is None else {"ACC": accuracy}
    inside = np.concatenate([scores[n] for n, role in roles.items() if role in ("id", "csid")])
    for mean, outside in ((NEAR, "near"), (FAR, "far")):
        names = [name for name, role in roles.items() if role == outside]
        lines = {name: ood_metrics(inside, scores[name]) for name in names}
        if lines:
            means = {m: np.mean([line[m] for line in lines.values()]) for m in METRICS[:-1]}
            lines[mean] = {metric: float(value) for metric, value in means.items()}
        table.update({name: {**line, **known} for name, line in lines.items()})
    return table
