"""Spearman's rank correlation (RC), which says how well a criterion orders checkpoints."""

from __future__ import annotations

from typing import Optional, Sequence, Union

import numpy as np
from scipy.stats import spearmanr

from nac_openood.errors import NACError


def rank_correlation(
    scores: Union[Sequence[float], np.ndarray], accuracies: Union[Sequence[float], np.ndarray]
) -> Optional[float]:
    """Spearman's rank correlation from -1 to 1, or None where it is undefined.

    It is undefined for fewer than two checkpoints, and where all scores or all accuracies are
    equal. Ties get the mean of their ranks, as in scipy; the authors' code breaks them by position.

    Args:
        scores: what a criterion says of each checkpoint.
        accuracies: of the same checkpoints.
    """
    first, second = np.asarray(scores, dtype=float), np.asarray(accuracies, dtype=float)
    if first.shape != second.shape or first.ndim != 1:
        raise NACError(
            f"expected a score and an accuracy for each checkpoint, got {first.shape} and "
            f"{second.shape}."
        )
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise NACError("expected finite scores and accuracies, got NaN or Inf.")
    if len(first) < 2 or len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return float(spearmanr(first, second).statistic)


def standard_error(values: Sequence[float]) -> Optional[float]:
    """Standard error of the mean, as the paper prints it; None for fewer than two values."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
