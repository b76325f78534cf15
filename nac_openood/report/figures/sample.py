"""The scores behind the pictures: ID and OOD scores of one run, finite ones only."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Mapping, Optional, Sequence

import numpy as np

from nac_openood.benchmark.run.results import Results, Row
from nac_openood.detector.outcomes import Scores
from nac_openood.report.order import Standing, ood_sets


@dataclass(frozen=True)
class RunScores:
    """A method's scores on one checkpoint.

    Args:
        run: name of the checkpoint.
        inside: scores of the ID test set.
        shifted: dataset under covariate shift -> scores; these count as ID.
        outside: OOD dataset -> scores.
        aurocs: OOD dataset -> AUROC in percent, where known.
    """

    run: str
    inside: Scores
    shifted: Mapping[str, Scores]
    outside: Mapping[str, Scores]
    aurocs: Mapping[str, float]

    def id_scores(self, layer: Optional[str] = None) -> np.ndarray:
        """Scores `[samples]` of everything that counts as ID, finite ones only."""
        parts = (self.inside, *self.shifted.values())
        return np.concatenate([finite(s, layer) for s in parts])


def finite(scored: Scores, layer: Optional[str] = None) -> np.ndarray:
    """Scores `[samples]` as float64 without NaN and infinity, of one layer if it is named."""
    empty = np.empty(0)
    values = np.asarray(scored.score if layer is None else scored.by_layer.get(layer, empty), float)
    return values[np.isfinite(values)]


#: The methods of a picture and their scores.
Shown = Sequence[tuple[Standing, RunScores]]


def sample_of(results: Results, method: str) -> Optional[RunScores]:
    """Scores of the first run that has any, or None; runs are not mixed in a picture."""
    for row in results.rows:
        if row.method == method and row.status == "ok":
            inside, shifted, outside = (
                _read(results, row, names)
                for names in (results.names("id"), results.names("csid"), ood_sets(results))
            )
            if inside and outside:
                known = {name: row.metrics.get(name, {}).get("AUROC") for name in outside}
                aurocs = {n: a for n, a in known.items() if a is not None and isfinite(a)}
                return RunScores(row.run, next(iter(inside.values())), shifted, outside, aurocs)
    return None


def _read(results: Results, row: Row, names: Sequence[str]) -> dict[str, Scores]:
    """Dataset -> scores, for datasets with at least one finite score."""
    found = {name: results.scores(row.run, row.method, name) for name in names}
    return {n: scored for n, scored in found.items() if scored is not None and finite(scored).size}
