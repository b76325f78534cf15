"""Decisions of a method on all samples, and scores of different methods on one scale."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence

import numpy as np

from nac_openood.analysis.reading_scores import ID_VAL, BySet
from nac_openood.core.ranking import threshold_at


class Decisions(NamedTuple):
    """What a method decides.

    Args:
        threshold: samples with lower scores are rejected.
        scores: by set, `[samples]` each.
    """

    threshold: float
    scores: BySet

    def rejected(self, sets: Sequence[str]) -> np.ndarray:
        """Which samples of some sets, one set after the other, are rejected."""
        return np.concatenate([self.scores[name] < self.threshold for name in sets])


def decide(scores: BySet, kept: float) -> Decisions:
    """Decisions at the threshold that keeps a share of the ID validation data."""
    return Decisions(threshold_at(scores[ID_VAL], kept), scores)


def percentiles(scores: Mapping[str, BySet]) -> dict[str, dict[str, np.ndarray]]:
    """The share of ID validation samples that score lower, by method and set, in percent.

    Samples with equal scores count half, so that scores with few values are comparable, too.
    """
    found: dict[str, dict[str, np.ndarray]] = {}
    for method, by_set in scores.items():
        known = np.sort(by_set[ID_VAL])
        found[method] = {
            name: 50 * (np.searchsorted(known, s) + np.searchsorted(known, s, "right")) / len(known)
            for name, s in by_set.items()
        }
    return found
