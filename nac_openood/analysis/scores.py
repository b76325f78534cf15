"""Scores of the test sets from stored readings, by NAC and NAC+ with any settings and layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Iterable, Iterator, Mapping, Optional, Sequence

import numpy as np
import torch
from torch import Tensor

from nac_openood.benchmark.run.results import metrics_by_set
from nac_openood.core.layer_config import LayerConfig
from nac_openood.core.plus import NACPlus
from nac_openood.core.reading import BatchReadings, logits_in
from nac_openood.core.rule import combine
from nac_openood.detector.readings import Readings, fit_rule
from nac_openood.search.tables import score_layer

if TYPE_CHECKING:
    from nac_openood.analysis.data import AnalysisData

#: Percent by name of an OOD set (or "nearood" or "farood") and by metric.
Metrics = Mapping[str, Mapping[str, float]]


class NACScores:
    """Scores of the test sets, equal to those of a detector fitted with the same settings.

    The scores of a layer are computed once for each of its settings and kept.

    Args:
        data: the readings.
        fit: readings to fit on; None takes the fitting subset.
        scored: readings to score by name; None takes all test sets.
    """

    def __init__(
        self,
        data: AnalysisData,
        fit: Optional[Readings] = None,
        scored: Optional[Mapping[str, Readings]] = None,
    ) -> None:
        self._data = data
        self._fit, self._scored = fit or data.fitting.fit, scored or data.scored
        self._rows: dict[tuple[object, ...], Tensor] = {}

    def prepare(self, points: Mapping[str, Sequence[LayerConfig]]) -> None:
        """Score many settings of each layer at once, which is faster than one by one."""
        for name, options in points.items():
            new = [point for point in options if _key(name, point) not in self._rows]
            if new:
                table = score_layer(name, new, self._fit, list(self._scored.values()))
                for point, row in zip(new, table.row.tolist()):
                    self._rows[_key(name, point)] = table.scores[row]

    def scores(self, layers: Mapping[str, LayerConfig]) -> dict[str, np.ndarray]:
        """The score of every sample, `[samples]` by set."""
        self.prepare({name: [config] for name, config in layers.items()})
        parts = {name: self._rows[_key(name, config)] for name, config in layers.items()}
        sizes = [readings.n_samples for readings in self._scored.values()]
        split = combine(parts, layers).split(sizes)
        return {n: s.cpu().numpy() for n, s in zip(self._scored, split)}

    def metrics(self, layers: Mapping[str, LayerConfig]) -> dict[str, dict[str, float]]:
        """The metrics that `compare` would compute for these settings."""
        return metrics_by_set(self.scores(layers), self._data.roles, self._data.accuracy)


def _key(name: str, point: LayerConfig) -> tuple[str, LayerConfig]:
    """The settings on which the scores of a layer depend: all but its weight."""
    return name, replace(point, weight=1.0)


class PlusScores:
    """Scores of the test sets by NAC+ with any of its layers, equal to those of a detector.

    Args:
        data: the readings.
        fit: readings to fit on; None takes the fitting subset.
    """

    def __init__(self, data: AnalysisData, fit: Optional[Readings] = None) -> None:
        self._data, self._fit = data, fit or data.fitting.fit

    def metrics(self, layers: Iterable[str], part: Optional[str] = None) -> Metrics:
        """The metrics with only these early layers, or of one part of the score alone."""
        data = self._data
        left_out = {*data.early_layers} - {*layers}
        rule = NACPlus({n: config for n, config in data.settings.items() if n not in left_out})

        def read(readings: Readings) -> Iterator[BatchReadings]:
            for batch in readings.batches(data.run.study.batch_size):  # equal ones, equal scores
                yield BatchReadings(logits_in(batch), {n: batch[n] for n in rule.layers})

        fit_rule(rule, read(self._fit))
        rule.calibrate(map(rule.parts, read(data.fitting.id_val)))

        def score(parts: Mapping[str, Tensor]) -> Tensor:
            return rule.combine(parts) if part is None else rule.fusion().used(parts)[part]

        scores = {
            name: torch.cat([score(rule.parts(batch)).cpu() for batch in read(readings)]).numpy()
            for name, readings in data.scored.items()
        }
        return metrics_by_set(scores, data.roles, data.accuracy)
