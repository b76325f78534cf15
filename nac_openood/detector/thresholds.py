"""From scores to decisions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from nac_openood.core.ranking import id_thresholds
from nac_openood.errors import NACError


def threshold_at(scores: Any, tpr: float = 0.95) -> float:
    """The highest threshold that keeps at least `tpr` of in-distribution scores.

    A sample is in-distribution if its score is >= the threshold.
    """
    values = np.asarray(scores, dtype=np.float64).ravel()
    if values.size == 0 or not np.isfinite(values).all():
        bad = int(values.size - np.isfinite(values).sum())
        raise NACError(f"a threshold needs finite scores, got {values.size} with {bad} not finite.")
    return float(id_thresholds(torch.from_numpy(values)[None], tpr))
