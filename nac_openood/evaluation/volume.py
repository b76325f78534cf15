"""RC against the volume of test data: with few test samples, test accuracy itself is noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional, Sequence

import numpy as np

from nac_openood.evaluation.correlation import rank_correlation

#: Shares of the test data.
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
#: Fewer samples say nothing about a checkpoint.
_FEWEST = 10
_DRAWS = 20


@dataclass(frozen=True)
class VolumePoint:
    """RC with the test accuracy on a random share of the test data.

    Args:
        criterion: "validation" or "nac-me".
        share: of the samples of each target domain.
        samples: how many that are.
        mean: of RC over random draws; None where it is undefined for all of them.
        std: its standard deviation over draws.
        draws: how many draws have an RC.
    """

    criterion: str
    share: float
    samples: int
    mean: Optional[float]
    std: Optional[float]
    draws: int


def rc_by_volume(
    scores: Mapping[str, Sequence[float]],
    correct: Sequence[np.ndarray],
    *,
    shares: Sequence[float] = SHARES,
) -> list[VolumePoint]:
    """RC of each criterion with test accuracy on 20 random parts of the test data per share.

    All checkpoints are tested on the same samples.

    Args:
        scores: what each criterion says of each checkpoint.
        correct: for each target domain, `[checkpoints, samples]`, 1 where the prediction is right.
        shares: which shares of the test data to look at; those of fewer than ten samples are left
            out, unless they are all there is.
    """
    rng = np.random.default_rng(0)
    points = []
    for share in shares:
        sizes = [max(1, round(share * flags.shape[1])) for flags in correct]
        if sum(sizes) < _FEWEST and share < 1:
            continue
        found: dict[str, list[float]] = {criterion: [] for criterion in scores}
        for _ in range(_DRAWS if share < 1 else 1):
            rows = [rng.choice(f.shape[1], n, replace=False) for f, n in zip(correct, sizes)]
            accuracies = np.mean([f[:, r].mean(axis=1) for f, r in zip(correct, rows)], axis=0)
            for criterion, values in scores.items():
                rc = rank_correlation(values, accuracies)
                if rc is not None:
                    found[criterion].append(rc)
        for criterion, rcs in found.items():
            mean, std = (float(np.mean(rcs)), float(np.std(rcs))) if rcs else (None, None)
            points.append(VolumePoint(criterion, share, sum(sizes), mean, std, len(rcs)))
    return points
