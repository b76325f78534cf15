"""Which methods of a comparison differ by more than chance: paired tests of their AUROCs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Optional, Sequence

import numpy as np
import torch

from nac_openood.core.metrics import Z_99, auroc_shares

if TYPE_CHECKING:
    from nac_openood.benchmark.run.results import Results

#: Shares of pairs in the right order, by sample: of ID data, then of each OOD set.
_Shares = list[np.ndarray]


@dataclass(frozen=True)
class Difference:
    """How a method's AUROC differs from that of the reference, in percentage points.

    Args:
        method: name of the method.
        points: its AUROC minus that of the reference, a mean over OOD sets and networks.
        low: lower end of the 99 % interval.
        high: upper end.
        p: two-sided p-value of the test that there is no difference, by Holm's method for all
            methods that are compared with the reference.
        ahead: on how many networks it is ahead.
        runs: on how many networks both have scores.
    """

    method: str
    points: float
    low: float
    high: float
    p: float
    ahead: int
    runs: int


class Paired:
    """DeLong's paired tests of the methods of a comparison.

    The tests are about the choice of test samples: would other samples of the same kind give the
    same order? The networks are taken as fixed; `Difference.ahead` says on how many of them the
    method is ahead.

    Args:
        results: the comparison.
        dataset: name of an OOD set, or "nearood" or "farood" for the mean over these sets.
    """

    def __init__(self, results: Results, dataset: str) -> None:
        every = {name: _shares_by_run(results, name, dataset) for name in results.methods()}
        self._shares = {name: by_run for name, by_run in every.items() if by_run}

    def against(self, reference: str) -> list[Difference]:
        """How every other method differs from the reference; empty if that has no scores."""
        found, own = [], self._shares.get(reference, {})
        for method, other in self._shares.items():
            runs = [run for run in own if run in other and method != reference]
            gaps = [[a - b for a, b in zip(other[run], own[run])] for run in runs]
            if gaps:
                points, error = _estimate([np.mean(part, axis=0) for part in zip(*gaps)])
                ahead = sum(_estimate(gap)[0] > 0 for gap in gaps)
                p = math.erfc(abs(points) / error / math.sqrt(2)) if error else float(points == 0)
                ends = points - Z_99 * error, points + Z_99 * error
                found.append(Difference(method, points, *ends, p, ahead, len(runs)))
        return _holm(found)


def _shares_by_run(results: Results, method: str, dataset: str) -> dict[str, _Shares]:
    """Shares by network, averaged over the OOD sets for ID samples."""
    outside, inside = results.ood_sets(dataset), [*results.names("id"), *results.names("csid")]
    found = {}
    for row in (r for r in results.rows if r.method == method and r.status == "ok"):
        read = {name: results.scores(row.run, method, name) for name in (*inside, *outside)}
        scores = {n: torch.from_numpy(s.score).double()[None] for n, s in read.items() if s}
        if inside and outside and len(scores) == len(read):
            known = torch.cat([scores[name] for name in inside], dim=1)
            pairs = [auroc_shares(known, scores[name]) for name in outside]
            above, below = zip(*((a[0].numpy(), b[0].numpy()) for a, b in pairs))
            found[row.run] = [np.mean(above, axis=0), *below]
    return found


def _estimate(gaps: Sequence[np.ndarray]) -> tuple[float, float]:
    """The difference of two AUROCs and its standard error, in percentage points.

    Args:
        gaps: differences of the shares, of ID samples and of the samples of each OOD set.
    """
    inside, *outside = gaps
    variance = np.var(inside, ddof=1) / len(inside)
    variance += sum(np.var(gap, ddof=1) / len(gap) for gap in outside) / len(outside) ** 2
    return 100 * float(inside.mean()), 100 * math.sqrt(float(variance))


def _holm(found: Sequence[Difference]) -> list[Difference]:
    """Adjust the p-values for the number of methods."""
    largest, adjusted = 0.0, {}
    for rank, each in enumerate(sorted(found, key=lambda each: each.p)):
        largest = max(largest, min(1.0, each.p * (len(found) - rank)))
        adjusted[each.method] = largest
    return [replace(each, p=adjusted[each.method]) for each in found]


def significant_side(difference: Difference) -> Optional[str]:
    """Whether a method is significantly (p < 0.01) "ahead" or "behind", else None."""
    if not difference.p < 0.01:
        return None
    return "ahead" if difference.points > 0 else "behind"
