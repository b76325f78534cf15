"""OpenOOD's five numbers, in percent: what it prints, from scikit-learn as it takes them.

FPR@95 and AUPR_OUT take OOD as the positive class, AUPR_IN takes ID.
"""

from __future__ import annotations

from typing import Mapping

import numpy as np
from sklearn.metrics import auc, precision_recall_curve, roc_curve

from nac_openood.bench.scorer import Scored
from nac_openood.errors import NACError

METRICS = ("FPR@95", "AUROC", "AUPR_IN", "AUPR_OUT", "ACC")


def ood_metrics(inside: np.ndarray, outside: np.ndarray) -> dict[str, float]:
    """FPR@95, AUROC, AUPR_IN and AUPR_OUT of ID and OOD scores `[samples]`, in percent."""
    score = np.concatenate([inside, outside])
    if not np.isfinite(score).all():
        raise NACError(
            f"expected finite scores, got NaN or Inf for {int((~np.isfinite(score)).sum())} of "
            f"{len(score)} images."
        )
    is_ood = np.concatenate([np.zeros(len(inside), int), np.ones(len(outside), int)])
    fpr, tpr, _ = roc_curve(is_ood, -score)
    found = {"FPR@95": fpr[np.argmax(tpr >= 0.95)], "AUROC": auc(fpr, tpr)}
    for name, positive, sign in (("AUPR_IN", 1 - is_ood, 1), ("AUPR_OUT", is_ood, -1)):
        precision, recall, _ = precision_recall_curve(positive, sign * score)
        found[name] = auc(recall, precision)
    return {name: 100 * float(value) for name, value in found.items()}


def accuracy(scored: Scored) -> float:
    """Of the predictions, in percent."""
    return 100 * float((scored.prediction == scored.label).mean())


def table_of(
    inside: Scored, near: Mapping[str, Scored], far: Mapping[str, Scored], correct: float
) -> dict[str, dict[str, float]]:
    """The numbers of every set and the means "nearood" and "farood", as OpenOOD tabulates them.

    Args:
        inside: the ID test set, with shifted sets appended for full-spectrum detection.
        near: near-OOD sets by name.
        far: far-OOD sets by name.
        correct: ID accuracy in percent, which OpenOOD repeats in every line.
    """
    table: dict[str, dict[str, float]] = {}
    for mean, sets in (("nearood", near), ("farood", far)):
        lines = {name: ood_metrics(inside.score, s.score) for name, s in sets.items()}
        table.update({name: {**line, "ACC": correct} for name, line in lines.items()})
        if lines:
            names = METRICS[:-1]
            means = {n: float(np.mean([line[n] for line in lines.values()])) for n in names}
            table[mean] = {**means, "ACC": correct}
    return table
