"""From scores to decisions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nac_openood.errors import NACError


def threshold_at(scores: Any, tpr: float = 0.95) -> float:
    """The highest threshold that keeps at least `tpr` of in-distribution scores.

    A sample is in-distribution if its score is >= the threshold.
    """
    values = np.asarray(scores, dtype=np.float64).ravel()
    if not 0 < tpr <= 1:
        raise NACError(f"tpr must be above 0 and at most 1, got {tpr!r}; 0.95 is usual.")
    if values.size == 0 or not np.isfinite(values).all():
        bad = int(values.size - np.isfinite(values).sum())
        raise NACError(f"a threshold needs finite scores, got {values.size} with {bad} not finite.")
    keep = max(1, math.ceil(tpr * values.size - 1e-9))
    return float(np.sort(values)[::-1][keep - 1])
