"""Scores and metrics of the test sets, without running the network.

`TestScores` scores NAC with any settings; `scores_on_readings` scores NAC and the other methods
that need only readings.
"""

from __future__ import annotations

from typing import Mapping, Optional, Sequence

import numpy as np
import torch
from torch import Tensor

from nac_openood.analysis.data import AnalysisData
from nac_openood.benchmark.run.results import metrics_by_set
from nac_openood.core.layer_config import LayerConfig
from nac_openood.core.rule import combine
from nac_openood.detector.readings import Readings
from nac_openood.search.advise import NAC_TITLE, alternatives
from nac_openood.search.tables import SearchData, score_layer

#: The name of the ID validation data beside the test sets.
ID_VAL = "id_val"

#: Scores `[samples]` by set; higher means more in-distribution.
BySet = Mapping[str, np.ndarray]

#: Percent by name of an OOD set (or "nearood" or "farood") and by metric.
Metrics = Mapping[str, Mapping[str, float]]


class TestScores:
    """Scores of the test sets, equal to those of a detector fitted with the same settings.

    The scores of a layer are computed once for each of its settings and kept.

    Args:
        data: the readings.
        fit: readings to fit on; None takes the fitting subset.
        scored: readings to score by name; None takes all test sets.
    """

    __test__ = False  # not a test case of pytest

    def __init__(
        self,
        data: AnalysisData,
        fit: Optional[Readings] = None,
        scored: Optional[Mapping[str, Readings]] = None,
    ) -> None:
        self._data = data
        self._samples = SearchData(fit or data.fitting.fit, scored or data.scored)
        self._rows: dict[tuple[object, ...], Tensor] = {}

    def prepare(self, points: Mapping[str, Sequence[LayerConfig]]) -> None:
        """Score many settings of each layer at once, which is faster than one by one."""
        for name, options in points.items():
            new = [point for point in options if _key(name, point) not in self._rows]
            if new:
                with torch.no_grad():
                    table = score_layer(name, new, self._samples)
                for point, row in zip(new, table.row.tolist()):
                    self._rows[_key(name, point)] = table.scores[row]

    def scores(self, layers: Mapping[str, LayerConfig]) -> dict[str, np.ndarray]:
        """The score of every sample, `[samples]` by set."""
        self.prepare({name: [config] for name, config in layers.items()})
        parts = {name: self._rows[_key(name, config)] for name, config in layers.items()}
        sizes = [readings.n_samples for readings in self._samples.scored.values()]
        split = combine(parts, layers).split(sizes)
        return {n: s.cpu().numpy() for n, s in zip(self._samples.scored, split)}

    def metrics(self, layers: Mapping[str, LayerConfig]) -> dict[str, dict[str, float]]:
        """The metrics that `compare` would compute for these settings."""
        return metrics_by_set(self.scores(layers), self._data.roles, self._data.accuracy)


def _key(name: str, point: LayerConfig) -> tuple[object, ...]:
    """The settings on which the scores of a layer depend: all but its weight."""
    return name, point.state, point.steepness, point.n_bins, point.full_count


def with_id_val(data: AnalysisData) -> dict[str, Readings]:
    """The ID validation data and all test sets by name."""
    return {ID_VAL: data.fitting.id_val, **data.scored}


def scores_on_readings(data: AnalysisData) -> dict[str, BySet]:
    """Scores of `with_id_val` by method: NAC, NAC+, energy, MSP and KNN.

    NAC+ and KNN are left out where their layers were not read. All methods are fitted on NAC's
    fitting subset.
    """
    sets, fitting = with_id_val(data), data.fitting
    found: dict[str, BySet] = {NAC_TITLE: TestScores(data, scored=sets).scores(data.settings)}
    for name, score in alternatives(
        fitting.fit, fitting.id_val, fitting.alternative_layers
    ).items():
        found[name] = {n: score(readings).cpu().numpy() for n, readings in sets.items()}
    return found
