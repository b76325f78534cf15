"""Conformal p-values: how unusual a score is among held-out in-distribution scores.

`p = (1 + #{c <= x}) / (n + 1)` for `n` calibration scores `c`. If the calibration samples and a new
sample are exchangeable, and the former had no part in making the score, then `P(p <= a) <= a` for
every `a`: for any network, any data and any `n`. `docs/guarantees.md` says why.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Optional

import torch
from torch import Tensor

from nac_openood.core.reading import DeviceTensors, double
from nac_openood.errors import NACError

#: The p-value at or below which a sample counts as out-of-distribution by default.
ALPHA = 0.05


class PValues:
    """Conformal p-values, and decisions at one level.

    Args:
        scores: scores of held-out samples that had no part in making the score, `[samples]`.
        classes: the predicted class of each, int64 `[samples]`; needed for `per_class`.
        alpha: the level of the decisions: the false-alarm rate that is accepted.
        confidence: if given, p-values and decisions hold for this calibration set with this
            probability; if None, on average over calibration sets.
        per_class: whether to compare a sample only with those of the same predicted class. The
            classes with the fewest samples are joined until they have `1 / alpha` of them.
        exact: False if these samples did have a part in making the score.

    Attributes:
        scores: the scores in increasing order, float64 `[samples]`.
        classes: their predicted classes in the same order, if they are known.
        limits: for every group of classes, the score below which samples count as
            out-of-distribution; -inf where there are too few samples for any to do so.
        least: the smallest p-value possible in every group.
    """

    def __init__(
        self,
        scores: Any,
        classes: Optional[Tensor] = None,
        *,
        alpha: float = ALPHA,
        confidence: Optional[float] = None,
        per_class: bool = False,
        exact: bool = True,
    ) -> None:
        values = double(torch.as_tensor(scores).detach()).cpu().flatten()
        n, broken = len(values), int((~values.isfinite()).sum())
        if not n:
            raise NACError("there are no held-out samples to calibrate on.")
        if broken:
            raise NACError(f"{broken} of {n} held-out scores are NaN or Inf.")
        self.alpha, self.confidence, self.exact = alpha, confidence, exact
        self.per_class = per_class
        self.scores, order = values.sort(stable=True)
        self.classes = None if classes is None else classes.cpu().long()[order]
        group_of, members = torch.zeros(1, dtype=torch.int64), [torch.arange(n)]
        if per_class and self.classes is not None:
            group_of, members = _groups(self.classes, math.ceil(1 / alpha))
        self.sizes = [len(rows) for rows in members]
        tables = [_table(size, confidence) for size in self.sizes]
        self.least = torch.stack([table[0] for table in tables])
        limits = [
            self.scores[rows][k - 1] if (k := self._alarms(len(rows), table)) else -math.inf
            for rows, table in zip(members, tables)
        ]
        self.limits = torch.tensor(limits, dtype=torch.float64)
        # the ranks of each group's scores among all scores, one group after the other
        rank = torch.searchsorted(self.scores, self.scores, right=True)
        keys = torch.cat([(n + 1) * g + rank[rows] for g, rows in enumerate(members)])
        self._held = DeviceTensors(
            self.scores, group_of, keys.double(), torch.cat(tables), self.limits
        )

    def __call__(self, scores: Tensor, classes: Optional[Tensor] = None) -> Tensor:
        """p-values, float64 in the shape of `scores`; NaN where those are.

        Args:
            scores: of new samples.
            classes: the predicted class of each; needed for `per_class`.
        """
        x = double(scores)
        held, group_of, keys, table, _ = self._held.on(x.device)
        below = torch.searchsorted(held, x.contiguous(), right=True)
        if self.per_class:
            group = self._group(group_of, classes)
            rank = ((len(held) + 1) * group + below).double()
            # the table of each group has one entry more than the group has samples
            below = torch.searchsorted(keys, rank.contiguous(), right=True) + group
        return table[below].masked_fill(x.isnan(), float("nan"))

    def __repr__(self) -> str:
        least = float(self.least.min())
        return f"PValues among {len(self.scores):,} scores, the smallest possible is {least:.2g}"

    def accepts(self, scores: Tensor, classes: Optional[Tensor] = None) -> Tensor:
        """Whether samples count as in-distribution, bool in the shape of `scores`.

        The same as a p-value above `alpha`; with `confidence`, there may be more alarms, because
        p-values then hold for all levels at once, and this for only one.
        """
        x = double(scores)
        _, group_of, *_, limits = self._held.on(x.device)
        return x >= limits[self._group(group_of, classes) if self.per_class else 0]

    def warn_if_never(self, alpha: float) -> None:
        """Warn if there are too few calibration samples for an alarm at a level."""
        silent = [n for n, least in zip(self.sizes, self.least) if least > alpha]
        if not silent:
            return
        needed = math.ceil(1 / alpha) - 1
        if self.confidence is not None:
            needed = 2 * math.ceil(math.log(1 - self.confidence) / math.log1p(-alpha))
        of = f" of {len(silent)} of {len(self.sizes)} groups of classes" if self.per_class else ""
        warnings.warn(
            f"no sample{of} can be called out-of-distribution at p <= {alpha:g}: it is compared "
            f"with {min(silent)} calibration samples, and {needed} are needed. Calibrate on more "
            "in-distribution data (twice as many for NAC+, whose score half of them shape), or "
            "accept more false alarms.",
            UserWarning,
            stacklevel=3,
        )

    @property
    def threshold(self) -> Optional[float]:
        """The score below which samples count as out-of-distribution; None if it differs by class.

        It is -inf where there are too few calibration samples for any sample to do so.
        """
        return None if self.per_class else float(self.limits)

    def ranks_at(
        self, level: float, n: int, classes: Optional[Tensor] = None
    ) -> list[tuple[int, int, int]]:
        """Where p-values reach a level, group by group.

        Args:
            level: a p-value.
            n: number of new samples.
            classes: their predicted classes; needed for `per_class`.

        Returns:
            The `k` for which scores below the k-th calibration score have p-values of at most
            `level`, the number of calibration samples, and that of new samples.
        """
        _, group_of, _, table, _ = self._held.on(torch.device("cpu"))
        parts = table.split([size + 1 for size in self.sizes])
        new = [n]
        if self.per_class:
            group = self._group(group_of, classes)
            new = torch.bincount(group, minlength=len(self.sizes)).tolist()
        alarms = [int((part[:-1] <= level).sum()) for part in parts]
        return list(zip(alarms, self.sizes, new))

    def _group(self, group_of: Tensor, classes: Optional[Tensor]) -> Tensor:
        if classes is None:
            raise NACError("p-values per class need the predicted class of every sample.")
        return group_of[classes.to(group_of.device).clamp(max=len(group_of) - 1)]

    def _alarms(self, n: int, table: Tensor) -> int:
        """The `k` for which scores below the k-th of `n` sorted ones are alarms; 0 for none."""
        if self.confidence is None:
            return int((table[:-1] <= self.alpha).sum())
        # the largest k for which P(Binomial(n, alpha) >= k) >= confidence: then the share of new
        # samples below the k-th score, Beta(k, n + 1 - k), is at most alpha with this probability
        k = torch.arange(n + 1, dtype=torch.float64)
        ways = math.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
        share = (ways + k * math.log(self.alpha) + (n - k) * math.log1p(-self.alpha)).exp()
        at_least = share.flip(0).cumsum(0).flip(0)
        at_least[0] = 1.0  # without rounding
        return int((at_least >= self.confidence).sum()) - 1


def _table(n: int, confidence: Optional[float]) -> Tensor:
    """The p-values of scores with 0 to `n` of `n` calibration scores at or below, `[n + 1]`.

    With `confidence`, they are adjusted as in Bates et al. (2023), by Simes' inequality: with this
    probability over calibration sets, the rate of alarms is at most the level, for all levels.
    """
    k = torch.arange(1, n + 2, dtype=torch.float64)
    if confidence is None:
        return k / (n + 1)
    half = max(1, n // 2)
    # b(m) = 1 - (delta * i ... (i - half + 1) / n ... (n - half + 1))**(1 / half) at i = n + 1 - m
    sums = torch.cat([torch.zeros(1), torch.arange(1, n + 1).double().log().cumsum(0)])
    i = n + 1 - torch.arange(1, n + 2)
    product = sums[i] - sums[(i - half).clamp(min=0)] - (sums[n] - sums[n - half])
    product = product.masked_fill(i < half, -math.inf)
    return -torch.expm1((math.log(1 - confidence) + product) / half)


def _groups(classes: Tensor, least: int) -> tuple[Tensor, list[Tensor]]:
    """Which samples each predicted class is compared with.

    Which classes are joined depends on the counts of calibration samples and the new sample
    together, so that p-values stay valid: the new one is exchangeable with those of its group.

    Args:
        classes: int64 `[samples]`.
        least: the number of samples that a group should have, with the new one.

    Returns:
        The group of every class, the last for all classes without a sample; and the rows of the
        samples of each group.
    """
    counts = torch.bincount(classes)
    counts = torch.cat([counts, counts.new_zeros(1)])
    rows = classes.argsort(stable=True).split(counts.tolist())
    numbers: dict[tuple[int, ...], int] = {}
    group_of = []
    for own in range(len(counts)):
        with_new = counts.clone()
        with_new[own] += 1
        order = with_new.argsort(stable=True)
        order = order[with_new[order] > 0]
        joined = int((with_new[order] < least).sum())
        if joined:  # as many classes as it takes
            joined = max(joined, 1 + int((with_new[order].cumsum(0) < least).sum()))
        few = order[:joined].tolist()
        # a class without samples adds none to its group
        group = tuple(k for k in sorted(few) if counts[k]) if own in few else (own,)
        group_of.append(numbers.setdefault(group, len(numbers)))
    members = [torch.cat([rows[k] for k in group]).sort().values for group in numbers]
    return torch.tensor(group_of), members
