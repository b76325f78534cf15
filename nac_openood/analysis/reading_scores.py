"""Scores and decisions of NAC and of the methods that readings suffice for."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence

import numpy as np

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.scores import TestScores
from nac_openood.core.ranking import threshold_at
from nac_openood.detector.readings import Readings
from nac_openood.search.advice import NAC_TITLE
from nac_openood.search.alternatives import alternatives

#: The name of ID validation data beside the test sets; no test set may have it.
ID_VAL = "id_val"

#: Scores `[samples]` by set; higher means more in-distribution.
BySet = Mapping[str, np.ndarray]


def scored_sets(data: AnalysisData) -> dict[str, Readings]:
    """The ID validation data and all test sets by name."""
    return {ID_VAL: data.fitting.id_val, **data.scored}


def scores_on_readings(data: AnalysisData) -> dict[str, BySet]:
    """Scores of `scored_sets` by method: NAC, NAC+, energy, MSP and KNN.

    NAC+ and KNN are left out where the layers that they look at were not read. All methods are
    fitted on NAC's fitting subset.
    """
    sets, given = scored_sets(data), data.fitting
    found: dict[str, BySet] = {NAC_TITLE: TestScores(data, scored=sets).scores(data.settings)}
    for name, score in alternatives(given.fit, given.id_val, given.known).items():
        found[name] = {n: score(readings).cpu().numpy() for n, readings in sets.items()}
    return found


def correct(readings: Readings) -> np.ndarray:
    """Which predictions are right, bool `[samples]`; OOD samples have no right class."""
    return (readings.prediction == readings.label).numpy()


class Decisions(NamedTuple):
    """What a method decides.

    Args:
        threshold: samples with lower scores are rejected.
        scores: by set, `[samples]` each.
    """

    threshold: float
    scores: BySet

    @classmethod
    def keeping(cls, share: float, scores: BySet) -> Decisions:
        """Decisions at the threshold that keeps a share of the ID validation data."""
        return cls(threshold_at(scores[ID_VAL], share), scores)

    def rejected(self, sets: Sequence[str]) -> np.ndarray:
        """Which samples of some sets, one set after the other, are rejected."""
        return np.concatenate([self.scores[name] < self.threshold for name in sets])

    def percentiles(self, name: str) -> np.ndarray:
        """The share of ID validation samples that score lower than those of a set, in percent.

        Samples with equal scores count half, so that scores with few values are comparable, too.
        """
        known, score = np.sort(self.scores[ID_VAL]), self.scores[name]
        lower = np.searchsorted(known, score) + np.searchsorted(known, score, "right")
        return 50 * lower / len(known)
