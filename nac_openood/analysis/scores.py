"""Scores and metrics of any settings on the test sets, without the network."""

from __future__ import annotations

from typing import Mapping, Optional, Sequence

import numpy as np
import torch
from torch import Tensor

from nac_openood.analysis.data import AnalysisData
from nac_openood.benchmark.run.metrics import metrics_by_set
from nac_openood.core.coverage import combine
from nac_openood.core.layer_config import LayerConfig
from nac_openood.detector.readings import Readings
from nac_openood.search.tables import SearchData, score_layer

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
