"""AUROC and both kinds of FPR@95 of many candidates at once, and confidence intervals of AUROCs.

Everything is counted in integers and divided once at the end, so equal rankings give equal
numbers to the last bit, whatever the device, the chunking or the number of threads. A higher
score means more in-distribution.
"""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nac_openood.errors import NACError

#: How many scores are processed at once; on a CPU they should fit in its cache.
_CPU_CHUNK = 2**18
_GPU_CHUNK = 2**24


def auroc(id_scores: Any, ood_scores: Any) -> Tensor:
    """The probability that an ID sample scores above an OOD sample, ties counting half.

    Args:
        id_scores: `[candidates, n_id]`, or `[n_id]` of a single candidate.
        ood_scores: `[candidates, n_ood]`, or `[n_ood]`.

    Returns:
        float64 `[candidates]` (or a scalar), on the device of the scores.
    """
    joined, n_id, shape = _join(id_scores, ood_scores)
    return joined_auroc(joined, n_id).reshape(shape)


def joined_auroc(scores: Tensor, n_id: int) -> Tensor:
    """`auroc` of float64 `[candidates, samples]` whose first `n_id` columns are ID."""
    return _by_chunk(lambda part: _auroc(part, n_id), scores)


def joined_fpr_at(scores: Tensor, n_id: int, tpr: float = 0.95) -> Tensor:
    """OpenOOD's FPR@95: ID samples called OOD when `tpr` of the OOD samples are found.

    OOD is the positive class. OpenOOD takes this number from scikit-learn's `roc_curve`, which
    leaves out points in the middle of a straight piece; so does this function, or else the two
    would differ where many scores are equal.

    Args:
        scores: float64 `[candidates, samples]`, of which the first `n_id` columns are ID.
        n_id: number of ID samples.
        tpr: the share of OOD samples to find.

    Returns:
        float64 `[candidates]`, on the device of the scores.
    """
    return _by_chunk(lambda part: _fpr(part[:, :n_id], part[:, n_id:], tpr), scores)


def fpr_in_at(id_scores: Any, ood_scores: Any) -> Tensor:
    """The FPR@95 of most papers: OOD samples accepted when 95 % of the ID samples are kept.

    ID is the positive class. See `auroc` for the shapes.
    """
    joined, n_id, shape = _join(id_scores, ood_scores)
    return joined_fpr_in_at(joined, n_id).reshape(shape)


def joined_fpr_in_at(scores: Tensor, n_id: int) -> Tensor:
    """`fpr_in_at` of float64 `[candidates, samples]` whose first `n_id` columns are ID."""
    accepted = scores[:, n_id:] >= id_thresholds(scores[:, :n_id])[:, None]
    return accepted.sum(dim=1).double() / accepted.shape[1]


def id_thresholds(id_scores: Tensor, tpr: float = 0.95) -> Tensor:
    """The highest thresholds that keep at least `tpr` of ID scores `[candidates, n_id]`.

    A sample is kept if its score is >= the threshold.
    """
    n_id = id_scores.shape[1]
    keep = max(1, math.ceil(tpr * n_id - 1e-9))  # 0.07 * 100 is a little more than 7
    return id_scores.kthvalue(n_id - keep + 1, dim=1).values


def threshold_at(scores: Any, tpr: float = 0.95) -> float:
    """The highest threshold that keeps at least `tpr` of in-distribution scores.

    A sample is in-distribution if its score is >= the threshold.
    """
    if isinstance(tpr, str) or not 0 < tpr <= 1:
        raise NACError(f"tpr must be above 0 and at most 1, got {tpr!r}; 0.95 is usual.")
    values = np.asarray(scores, dtype=np.float64).ravel()
    if values.size == 0 or not np.isfinite(values).all():
        bad = int(values.size - np.isfinite(values).sum())
        raise NACError(f"a threshold needs finite scores, got {values.size} with {bad} not finite.")
    return float(id_thresholds(torch.from_numpy(values)[None], tpr))


def _auroc(scores: Tensor, n_id: int) -> Tensor:
    # sorted, so that consecutive searches stay close in memory
    wins = _twice_below(_sorted_rows(scores[:, :n_id]), scores[:, n_id:]).sum(dim=1)
    return wins.double() / (2 * n_id * (scores.shape[1] - n_id))


def _twice_below(scores: Tensor, others: Tensor) -> Tensor:
    """Twice the number of `others` below each score, ties counting half; int64 as `scores`."""
    ordered = _sorted_rows(others)
    if scores.device.type != "cpu":
        low = torch.searchsorted(ordered, scores.contiguous())
        return low + torch.searchsorted(ordered, scores.contiguous(), right=True)
    pairs = list(zip(ordered.numpy(), scores.numpy()))
    found = [np.searchsorted(o, s) + np.searchsorted(o, s, side="right") for o, s in pairs]
    return torch.from_numpy(np.stack(found))


def _sorted_rows(scores: Tensor) -> Tensor:
    if scores.device.type != "cpu":
        return scores.sort(dim=1).values
    return torch.from_numpy(np.sort(scores.numpy(), axis=1))  # faster than torch on a CPU


def _fpr(id_scores: Tensor, ood_scores: Tensor, tpr: float) -> Tensor:
    n_ood = ood_scores.shape[1]
    found = np.arange(1, n_ood + 1) / n_ood >= tpr  # rounded as scikit-learn rounds it
    threshold = ood_scores.kthvalue(int(found.argmax()) + 1, dim=1).values
    _skip_straight(id_scores, ood_scores, threshold)
    return (id_scores <= threshold[:, None]).sum(dim=1).double() / id_scores.shape[1]


def _skip_straight(id_scores: Tensor, ood_scores: Tensor, threshold: Tensor) -> None:
    """Move thresholds in the middle of a straight piece of the ROC curve to its end.

    A point of the curve is left out by scikit-learn when the step to it and the step from it are
    the same: as many ID and as many OOD samples at its threshold as at the next one. A step
    without ID samples does not change the FPR, so only thresholds equal to an ID score matter.
    """
    lowest = torch.minimum(id_scores.amin(dim=1), ood_scores.amin(dim=1))
    steps = _count(id_scores, threshold), _count(ood_scores, threshold)
    rows = ((steps[0] > 0) & (threshold > lowest)).nonzero()[:, 0]
    while rows.numel():
        ids, oods, at = id_scores[rows], ood_scores[rows], threshold[rows]
        later = torch.minimum(_next(ids, at), _next(oods, at))
        same = (_count(ids, at) == _count(ids, later)) & (_count(oods, at) == _count(oods, later))
        rows, later = rows[same], later[same]
        threshold[rows] = later


def _count(scores: Tensor, value: Tensor) -> Tensor:
    return (scores == value[:, None]).sum(dim=1)


def _next(scores: Tensor, value: Tensor) -> Tensor:
    """The lowest score above `value`, or infinity."""
    return scores.masked_fill(scores <= value[:, None], float("inf")).amin(dim=1)


def _join(id_scores: Any, ood_scores: Any) -> tuple[Tensor, int, torch.Size]:
    """Both as one float64 `[candidates, n_id + n_ood]`, `n_id`, and the shape of the answer."""
    first, second = torch.as_tensor(id_scores), torch.as_tensor(ood_scores)
    if first.ndim not in (1, 2) or first.shape[:-1] != second.shape[:-1]:
        raise NACError(
            "expected scores of shapes [candidates, n_id] and [candidates, n_ood], or [n_id] and "
            f"[n_ood]; got {list(first.shape)} and {list(second.shape)}."
        )
    for scores, what in ((first, "ID"), (second, "OOD")):
        if not scores.shape[-1]:
            raise NACError(f"there are no {what} scores: AUROC and FPR@95 need both ID and OOD.")
        if not scores.isfinite().all():
            raise NACError(f"{what} scores contain NaN or Inf, which cannot be ranked: drop them.")
    both = torch.cat([first.double(), second.to(first.device).double()], dim=-1)
    shape = first.shape[:-1]
    return both.reshape(-1, both.shape[-1]), first.shape[-1], shape


def _by_chunk(rank: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    """Apply `rank` to a few rows at a time, so that its temporaries stay small."""
    size = _CPU_CHUNK if scores.device.type == "cpu" else _GPU_CHUNK
    rows = max(1, size // max(1, scores.shape[1]))
    return torch.cat([rank(part) for part in scores.split(rows)])


# -- confidence intervals (DeLong et al., 1988) ---------------------------------------------

#: Half the width of a 99 % interval in standard errors.
Z_99 = 2.5758


class Interval(NamedTuple):
    """An estimate and its 99 % interval."""

    value: float
    low: float
    high: float


def auroc_intervals(id_scores: Tensor, ood_scores: Tensor) -> tuple[list[Interval], list[Interval]]:
    """The AUROC of each method, and how much higher it is than that of the first.

    ID and OOD samples are assumed to be independent. For OOD samples made from these ID samples,
    whose scores are correlated, the intervals are too wide rather than too narrow.

    Args:
        id_scores: `[methods, n_id]`, at least two, higher = more in-distribution.
        ood_scores: `[methods, n_ood]`, at least two.
    """
    inside, outside = id_scores.double().contiguous(), ood_scores.double().contiguous()
    above, below = auroc_shares(inside, outside)
    values = above.mean(dim=1)
    shape = (len(values), len(values))
    first, second = (x.cov().reshape(shape) / x.shape[1] for x in (above, below))
    covariance = first + second
    own = covariance.diagonal()
    variances = own + own[0] - 2 * covariance[0]
    aurocs = [_interval(*found) for found in zip(values, own)]
    aurocs = [Interval(a.value, max(0.0, a.low), min(1.0, a.high)) for a in aurocs]
    return aurocs, [_interval(*found) for found in zip(values - values[0], variances)]


def auroc_shares(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Of each ID sample, the share of OOD samples below it; of each OOD sample, of ID above it.

    Ties count half, so the mean of either is the AUROC.

    Args:
        inside: ID scores `[methods, n_id]`.
        outside: OOD scores `[methods, n_ood]`.
    """
    return _shares_below(inside, outside), 1 - _shares_below(outside, inside)


def _interval(value: Tensor, variance: Tensor) -> Interval:
    margin = Z_99 * float(variance.clamp(min=0)) ** 0.5
    return Interval(float(value), float(value) - margin, float(value) + margin)


def _shares_below(scores: Tensor, others: Tensor) -> Tensor:
    """The share of `others` below each score, ties counting half, in the shape of `scores`."""
    return _twice_below(scores, others).double() / (2 * others.shape[1])
