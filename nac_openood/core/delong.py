"""How certain AUROCs of several methods on the same samples are (DeLong et al., 1988)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nac_openood.errors import NACError

#: Half the width of a 99 % interval in standard errors.
Z_99 = 2.5758


class Interval(NamedTuple):
    """An estimate and its 99 % interval."""

    value: float
    low: float
    high: float


class Aurocs:
    """AUROCs of some methods, and how they vary together.

    ID and OOD samples are taken to be independent. For OOD samples made from the very ID samples,
    whose scores rise and fall with theirs, the intervals are too wide rather than too narrow.

    Args:
        id_scores: `[methods, n_id]`, higher = more in-distribution.
        ood_scores: `[methods, n_ood]`.
    """

    def __init__(self, id_scores: Tensor, ood_scores: Tensor) -> None:
        inside, outside = id_scores.double().contiguous(), ood_scores.double().contiguous()
        n_id, n_ood = inside.shape[-1], outside.shape[-1]
        if min(n_id, n_ood) < 2:
            raise NACError(
                "expected at least two ID and two OOD samples to tell how certain an AUROC is, "
                f"got {n_id} and {n_ood}."
            )
        above = _shares_below(inside, outside)  # of each ID sample: how much OOD it beats
        below = 1 - _shares_below(outside, inside)
        self.values = above.mean(dim=1)
        self._covariance = _covariance(above) / n_id + _covariance(below) / n_ood

    def interval(self, method: int) -> Interval:
        """The AUROC of a method, in [0, 1]."""
        found = _interval(self.values[method], self._covariance[method, method])
        return Interval(found.value, max(0.0, found.low), min(1.0, found.high))

    def difference(self, first: int, second: int) -> Interval:
        """How much higher the AUROC of `first` is than that of `second`."""
        c = self._covariance
        variance = c[first, first] + c[second, second] - 2 * c[first, second]
        return _interval(self.values[first] - self.values[second], variance)


def _interval(value: Tensor, variance: Tensor) -> Interval:
    reach = Z_99 * float(variance.clamp(min=0)) ** 0.5
    return Interval(float(value), float(value) - reach, float(value) + reach)


def _shares_below(scores: Tensor, others: Tensor) -> Tensor:
    """The share of `others` below each score, ties counting half, in the shape of `scores`."""
    ordered = others.sort(dim=1).values
    less = torch.searchsorted(ordered, scores)
    not_more = torch.searchsorted(ordered, scores, right=True)
    return (less + not_more).double() / (2 * others.shape[1])


def _covariance(rows: Tensor) -> Tensor:
    return torch.cov(rows).reshape(len(rows), len(rows))
