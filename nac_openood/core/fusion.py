"""How NAC+ fuses its parts: each becomes the logarithm of an estimated p-value.

The estimates have an exponential tail, because few calibration scores are left to count among the
lowest ones: below the `t` quantile `q`, `p = t * exp(-(q - x) / b)`, where `b` is the mean distance
from `q` of the scores below it. `t` is 5 %, or more if that is fewer than ten scores. The score
needs the tail to tell very unusual samples from unusual ones. The p-value of the score itself is
that of `pvalues.PValues`, which has no tail.
"""

from __future__ import annotations

import math
from functools import reduce
from itertools import combinations
from typing import Any, Mapping

import torch
from torch import Tensor

from nac_openood.core.reading import DeviceTensors, double
from nac_openood.errors import NACError

#: Names of parts of a score: GEN of the logits, and what the alignment is computed from, that is,
#: the largest standardized logit and the distance of the head's input.
LOGITS, TOWARDS, DISTANCE = "logits", "towards a class", "head distance"
#: Names of the alignment, and of the sums of the late parts and of the early ones.
ALIGNMENT, LATE, EARLY = "alignment", "late", "early"
_TAIL, _TAIL_SAMPLES = 0.05, 10
_LOG_LEAST = math.log(1e-300)
_ROUND = 2.0**32
#: The version of NAC+, which files hold; `docs/method.md` lists the versions.
VERSION = 4
#: Fewer held-out scores are not enough to estimate a tail.
MIN_SAMPLES = 8


class TailEstimate:
    """p-values against held-out in-distribution scores, with an exponential tail.

    Args:
        scores: scores of at least `MIN_SAMPLES` held-out samples, `[samples]`. They must not be of
            training data, which networks memorize.
    """

    def __init__(self, scores: Any) -> None:
        values = double(torch.as_tensor(scores).detach()).cpu().flatten().contiguous()
        if len(values) < MIN_SAMPLES:
            raise NACError(
                f"the tail of scores needs at least {MIN_SAMPLES} held-out samples, got "
                f"{len(values)}. Calibrate on more in-distribution data."
            )
        broken = int((~values.isfinite()).sum())
        if broken:
            raise NACError(f"{broken} of {len(values)} held-out scores are NaN or Inf.")
        self._unsorted = values
        self.scores = values.sort().values
        self._share = _tail_share(len(values))
        low, high, weight = _position(self._share, len(values))
        edge = torch.lerp(self.scores[low], self.scores[high], weight)
        tail = self.scores[self.scores < edge]
        scale = (edge - tail).mean() if len(tail) else torch.zeros_like(edge)
        self._held = DeviceTensors(self.scores, edge, scale)

    def log(self, scores: Tensor) -> Tensor:
        """Logarithms of the p-values, float64 in the shape of `scores`; NaN where those are."""
        x = double(scores)
        held, edge, scale = self._held.on(x.device)
        counted = torch.searchsorted(held, x.contiguous(), right=True)
        bulk = ((1 + counted).double() / (len(held) + 1)).log()
        return _with_tail(x, bulk, edge, scale, self._share).masked_fill(x.isnan(), float("nan"))

    def __call__(self, scores: Tensor) -> Tensor:
        """p-values, float64 in the shape of `scores`."""
        return self.log(scores).exp()

    def left_out(self) -> Tensor:
        """Logarithms of the held-out scores' own p-values, in the order in which they were passed.

        Each is taken against the others only, as if it were a new score; against all of them, a
        score would never look unusual. Equal to `n` refits, in one sort.
        """
        held, x, n = self.scores, self._unsorted, len(self.scores)
        counted = torch.searchsorted(held, x, right=True)  # counts the score itself: the "1 +"
        bulk = (counted.double() / n).log()
        share = _tail_share(n - 1)
        low, high, weight = _position(share, n - 1)
        # sorted scores without this one: all that follow it move up by one
        rank = torch.searchsorted(held, x)
        edge = torch.lerp(
            held[low + (rank <= low).long()], held[high + (rank <= high).long()], weight
        )
        inside = (x < edge).long()
        before = torch.searchsorted(held, edge)
        sums = torch.cat([held.new_zeros(1), held.cumsum(0)])
        others = before - inside
        mean = (sums[before] - x * inside) / others.clamp(min=1)
        scale = torch.where(others > 0, edge - mean, torch.zeros_like(edge))
        return _with_tail(x, bulk, edge, scale, share)


def _tail_share(n: int) -> float:
    return min(0.5, max(_TAIL, _TAIL_SAMPLES / n))


def _position(share: float, n: int) -> tuple[int, int, float]:
    """Between which of `n` sorted values a quantile lies, and how far from the first of them."""
    position = share * (n - 1)
    low = int(position)
    return low, min(low + 1, n - 1), position - low


def _with_tail(x: Tensor, bulk: Tensor, edge: Tensor, scale: Tensor, share: float) -> Tensor:
    """Log p-values with the exponential tail below `edge`, where the scores have one."""
    tail = math.log(share) - (edge - x) / scale
    return torch.where((x < edge) & (scale > 0), tail, bulk).clamp(min=_LOG_LEAST)


class Fusion:
    """Turns the parts of a score into p-values against calibration data, and fuses them.

    `early` is the weighted sum of the log p-values of the coverages and distances of the early
    layers, and `late` that of GEN, the alignment and the distance of the head's input. Both are
    turned into p-values once more. Then `score = w log p(late) - log(1 + s / p(early))`: if the
    early layers find a sample unusual, with `p(early)` below `s`, they count in full, and otherwise
    hardly at all.

    The weights keep shared evidence from counting twice. They follow from how far two parts agree
    on the calibration data (see `_agreement`):

    - An early part has the weight 1 minus its agreement with GEN.
    - The distance of the head's input takes the place of GEN as far as they agree: it has the
      weight of their agreement, and GEN 1 minus that. In most convolutional networks, confident
      samples are far from the mean. Then a large distance is no sign of OOD data, and the agreement
      is 0.
    - If the distance, the alignment and the early layers all agree, as in transformers for text,
      one thing makes a sample unusual at all depths. The distance tells it best, and takes the
      place of both GEN and the alignment (see `_replaced`).

    Args:
        calibration: the parts of held-out in-distribution data by name, `[samples]` each. These
            samples shape the score, so its p-values need others. Without `TOWARDS` and `DISTANCE`,
            as in NAC+ 1, `late` is GEN.
        logit_weight: the weight `w` of the late parts.
        softness: the p-value `s` below which the early layers count.
        version: the version of the rule, for old files. Below 3, there are no weights and the
            distance is only used in the alignment; in 3, it never takes the alignment's place.
    """

    def __init__(
        self,
        calibration: Mapping[str, Tensor],
        *,
        logit_weight: float,
        softness: float,
        version: int = VERSION,
    ) -> None:
        self.calibration = {
            name: double(part).cpu().contiguous() for name, part in calibration.items()
        }
        self.logit_weight, self.softness = logit_weight, softness
        distance = self.calibration.get(DISTANCE)
        self._usual = None if distance is None else float(distance.median())
        self._weighted = version > 2 and distance is not None
        used = self.used(self.calibration)
        self._estimates = {name: TailEstimate(part) for name, part in used.items()}
        left_out = {name: estimate.left_out() for name, estimate in self._estimates.items()}
        #: The weight of each part that does not count in full.
        self.weights: dict[str, float] = {}
        if self._weighted:
            agreed = {name: _agreement(part, used[LOGITS]) for name, part in used.items()}
            replaced = _replaced(used, _total(_early_parts(left_out))) if version > 3 else 0.0
            self.weights = {name: 1.0 - agreed[name] for name in _early_parts(used)}
            self.weights[ALIGNMENT] = 1.0 - replaced
            self.weights[DISTANCE] = max(agreed[DISTANCE], replaced)
            self.weights[LOGITS] = 1.0 - self.weights[DISTANCE]
        left_out = self._weigh(left_out)
        self._early = TailEstimate(_total(_early_parts(left_out)))
        late = _late_parts(left_out)
        self._late = TailEstimate(_total(late)) if len(late) > 1 else None

    def used(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parts that are fused; the alignment is computed here.

        The median distance limits the alignment of samples close to the mean, which may just lack
        everything that the network looks for.
        """
        used = {name: part for name, part in parts.items() if name not in (TOWARDS, DISTANCE)}
        if self._usual is not None:
            length = (parts[DISTANCE].square() + self._usual**2).sqrt().clamp(min=1e-12)
            used[ALIGNMENT] = parts[TOWARDS] / length
        if self._weighted:
            used[DISTANCE] = -parts[DISTANCE]
        return used

    def _weigh(self, logs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: self.weights.get(name, 1.0) * log for name, log in logs.items()}

    def evidence(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weighted log p-values of the parts, and those of their sums under `EARLY` and `LATE`."""
        used = self.used(parts)
        logs = self._weigh({name: self._estimates[name].log(part) for name, part in used.items()})
        late = logs[LOGITS] if self._late is None else self._late.log(_total(_late_parts(logs)))
        return {**logs, EARLY: self._early.log(_total(_early_parts(logs))), LATE: late}

    def score(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The score, float64 `[batch]`."""
        logs = self.evidence(parts)
        score = self.logit_weight * logs[LATE] + self._softened(logs[EARLY])
        # samples with the same p-values must tie in other runtimes, too, which round differently
        return score if self._late is None else (score * _ROUND).round() / _ROUND

    def contributions(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """How much each part adds to the score, in proportion to log p-values."""
        logs = self.evidence(parts)
        late = self.logit_weight * logs[LATE]
        return {
            **_shared(self._softened(logs[EARLY]), _early_parts(logs)),
            **(_shared(late, _late_parts(logs)) if self._late is not None else {LOGITS: late}),
        }

    def _softened(self, early: Tensor) -> Tensor:
        """`-log(1 + s / p)` of log p-values."""
        return -torch.log1p(self.softness * torch.exp(-early))


def _agreement(part: Tensor, other: Tensor) -> float:
    """How similarly two parts rank ID samples, from 0 to 1.

    This is `r^2`, where `r` is Spearman's rank correlation minus two standard errors, because with
    few samples a correlation is mostly chance. A negative `r` counts as 0.
    """
    first, second = _centered_ranks(part), _centered_ranks(other)
    length = float(first.norm() * second.norm())
    correlation = float(first @ second) / length if length else 0.0
    return max(0.0, correlation - 2 / math.sqrt(len(part) - 1)) ** 2


def _replaced(used: Mapping[str, Tensor], early: Tensor) -> float:
    """How far the distance takes the place of the alignment, from 0 to 1.

    It rises from 0 to 1 where the least agreement of any two of the distance, the alignment and the
    early layers rises from 0.4 to 0.6.
    """
    orders = (used[ALIGNMENT], used[DISTANCE], early)
    least = min(_agreement(first, second) for first, second in combinations(orders, 2))
    return min(1.0, max(0.0, 5.0 * least - 2.0))


def _centered_ranks(x: Tensor) -> Tensor:
    """Ranks minus their mean, times two: whole numbers. Ties have their mean rank."""
    ordered = x.sort().values
    ranks = torch.searchsorted(ordered, x) + torch.searchsorted(ordered, x, right=True)
    return ranks.double() - len(x)


def _total(logs: Mapping[str, Tensor]) -> Tensor:
    return reduce(torch.add, logs.values())


def _shared(total: Tensor, logs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Divide a part of the score among its components, in proportion to their log p-values."""
    summed = _total(logs)
    even = torch.full_like(summed, 1 / len(logs))  # where nothing is unusual
    # + 0.0: never -0.0, which would be printed as -0
    return {
        n: total * torch.where(summed == 0, even, log / summed) + 0.0 for n, log in logs.items()
    }


def _early_parts(logs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The early parts, sorted: their sum must not depend on the order in a file."""
    others = (LOGITS, ALIGNMENT, DISTANCE, EARLY, LATE)
    return {name: logs[name] for name in sorted(logs) if name not in others}


def _late_parts(logs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: logs[name] for name in (LOGITS, ALIGNMENT, DISTANCE) if name in logs}
