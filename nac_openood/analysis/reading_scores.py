"""Scores of NAC and of the methods that readings suffice for."""

from __future__ import annotations

from typing import Mapping

import numpy as np

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.scores import TestScores
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
    sets = scored_sets(data)
    found: dict[str, BySet] = {NAC_TITLE: TestScores(data, scored=sets).scores(data.settings)}
    for name, score in alternatives(data.fitting.fit, data.fitting.id_val, data.known).items():
        found[name] = {n: score(readings).cpu().numpy() for n, readings in sets.items()}
    return found


def correct(readings: Readings) -> np.ndarray:
    """Which predictions are right, bool `[samples]`; OOD samples have no right class."""
    return (readings.prediction == readings.label).numpy()
