"""The scores behind the pictures: one run's, ID and OOD, without what cannot be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional

import numpy as np

from nac_openood.bench.scorer import Scored
from nac_openood.compare.results import Results
from nac_openood.report.order import ood_sets


@dataclass(frozen=True)
class Sample:
    """A method's scores on one checkpoint.

    Args:
        run: its name.
        inside: scores of the ID test set.
        shifted: csid set -> scores; these count as ID.
        outside: OOD set -> scores.
    """

    run: str
    inside: Scored
    shifted: Mapping[str, Scored]
    outside: Mapping[str, Scored]

    def id_scores(self, layer: Optional[str] = None) -> np.ndarray:
        """Scores of all that counts as ID, also covariate-shifted sets."""
        parts = (self.inside, *self.shifted.values())
        return np.concatenate([finite(s, layer) for s in parts])


def finite(scored: Scored, layer: Optional[str] = None) -> np.ndarray:
    """Scores `[samples]` as float64 without NaN and infinity; of a layer, where one is named."""
    empty = np.empty(0)
    values = np.asarray(scored.score if layer is None else scored.layers.get(layer, empty), float)
    return values[np.isfinite(values)]


def sample_of(results: Results, method: str) -> Optional[Sample]:
    """Scores of the first run that has its files, or None: runs are not mixed in a picture."""
    for row in results.rows:
        if row.method != method or row.status != "ok":
            continue
        inside = [_read(results, row.run, method, name) for name in results.names("id")]
        outside = {n: _read(results, row.run, method, n) for n in ood_sets(results)}
        known = {n: s for n, s in outside.items() if s is not None}
        if inside and inside[0] is not None and known:
            shifted = {n: _read(results, row.run, method, n) for n in results.names("csid")}
            return Sample(
                row.run, inside[0], {n: s for n, s in shifted.items() if s is not None}, known
            )
    return None


def _read(results: Results, run: str, method: str, dataset: str) -> Optional[Scored]:
    """Scores with at least one that can be drawn."""
    scored = results.scores(run, method, dataset)
    return scored if scored is not None and finite(scored).size else None
