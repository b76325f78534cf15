"""Scores, metrics and decisions on the test sets, without the network.

`TestScores` has those of NAC with any settings, `scores_on_readings` those of NAC and of the other
methods that need nothing but readings.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional, Sequence

import numpy as np
import torch
from torch import Tensor

from nac_openood.analysis.data import AnalysisData
from nac_openood.benchmark.run.metrics import metrics_by_set
from nac_openood.core.coverage import combine
from nac_openood.core.layer_config import LayerConfig
from nac_openood.core.ranking import threshold_at
from nac_openood.detector.readings import Readings
from nac_openood.search.advice import NAC_TITLE
from nac_openood.search.alternatives import alternatives
from nac_openood.search.tables import SearchData, score_layer

#: The name of ID validation data beside the test sets; no test set may have it.
ID_VAL = "id_val"

#: Scores `[samples]` by set; higher means more in-distribution.
BySet = Mapping[str, np.ndarray]

#: Percent by name of an OOD set (or "nearood" or "farood") and by metric.
Metrics = Mapping[str, Mapping[str, float]]

_Row = tuple[str, str, float, int, int]


class TestScores:
    """Scores of the test sets, as a detector fitted with the settings would give them.

    The scores of a layer are computed once for all settings that are asked for together, and kept.

    Args:
        data: the readings.
        fit: readings to fit on; None takes the fitting subset.
        scored: readings to score by name; None takes all test sets.
    """

    __test__ = False  # no test of pytest's

    def __init__(
        self,
        data: AnalysisData,
        fit: Optional[Readings] = None,
        scored: Optional[Mapping[str, Readings]] = None,
    ) -> None:
        self._data = data
        self._samples = SearchData(fit or data.fitting.fit, scored or data.scored)
        self._rows: dict[_Row, Tensor] = {}

    def prepare(self, points: Mapping[str, Sequence[LayerConfig]]) -> None:
        """Score many settings of layers at once, which is faster than one by one."""
        for name, options in points.items():
            new = [point for point in options if _row(name, point) not in self._rows]
            if new:
                with torch.no_grad():
                    table = score_layer(name, new, self._samples)
                for point, row in zip(new, table.row.tolist()):
                    self._rows[_row(name, point)] = table.scores[row]

    def scores(self, layers: Mapping[str, LayerConfig]) -> dict[str, np.ndarray]:
        """The score of every sample, `[samples]` by set."""
        self.prepare({name: [config] for name, config in layers.items()})
        parts = {name: self._rows[_row(name, config)] for name, config in layers.items()}
        sizes = [readings.n_samples for readings in self._samples.scored.values()]
        split = combine(parts, layers).split(sizes)
        return {n: s.cpu().numpy() for n, s in zip(self._samples.scored, split)}

    def metrics(self, layers: Mapping[str, LayerConfig]) -> dict[str, dict[str, float]]:
        """What `compare` would print for these settings."""
        return set_metrics(self._data, self.scores(layers))


def _row(name: str, point: LayerConfig) -> _Row:
    """What the scores of a layer depend on."""
    return name, point.state, point.steepness, point.n_bins, point.full_count


def set_metrics(
    data: AnalysisData, scores: Mapping[str, np.ndarray]
) -> dict[str, dict[str, float]]:
    """The metrics of every OOD set and their means, in percent, from scores of all test sets."""
    return metrics_by_set(scores, data.roles, data.accuracy)


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
