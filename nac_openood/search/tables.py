"""Score candidates without the network: each layer candidate once, then combinations of them.

A layer's readings are turned into states once for each state and steepness, and binned once for
each number of bins; `full_count` only decides where counts are cut off, and the weight only
multiplies the result. A joint candidate takes one candidate of every layer, combined exactly as the
detector combines them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import torch
from torch import Tensor

from nac_openood.core.coverage import Coverage, layer_score, states_of
from nac_openood.core.histogram import Histogram
from nac_openood.core.layer_config import LayerConfig
from nac_openood.core.metrics import joined_auroc, joined_fpr_at
from nac_openood.detector.readings import Readings
from nac_openood.errors import NACError

#: Scores that one thread computes at a time.
_PIECE = 2**18
_EXCLUDED = float("-inf")

Objective = Callable[[Tensor, int], Tensor]


#: Objectives to maximize: `([candidates, samples], n_id) -> [candidates]`.
OBJECTIVES: Mapping[str, Objective] = {
    "auroc": joined_auroc,
    "fpr95": lambda scores, n_id: 1 - joined_fpr_at(scores, n_id),
    "mean": lambda scores, n: (joined_auroc(scores, n) + (1 - joined_fpr_at(scores, n))) / 2,
}


def check_readings(
    fit: Readings, scored: Mapping[str, Readings], points: Mapping[str, Sequence[LayerConfig]]
) -> None:
    """Raise if a set is empty, or lacks what the candidates of a layer need.

    Args:
        fit: readings of the fitting subset; counted, not scored.
        scored: readings by role: "ID validation", "OOD validation", "held-out training".
        points: the candidates by layer.
    """
    for role, readings in {"fitting": fit, **scored}.items():
        if not readings.n_samples:
            raise NACError(f"the {role} set is empty: the search needs at least one sample.")
        differs = readings.differs_from(fit)
        if differs:
            raise NACError(
                f"the {role} readings are not like those of the fitting set ({differs}). Read all "
                "datasets with the same network and layers."
            )
        for name, options in points.items():
            for point in options:
                Coverage({name: replace(point, weight=1.0)}).checked(readings)
        readings.check_finite(role, points)
        if role != "OOD validation":
            readings.check_labels(role)


class LayerTable(NamedTuple):
    """The scores of one layer's candidates; those that differ only in weight share a row.

    Args:
        name: name of the layer.
        points: the candidates.
        row: int64 `[points]`, the row of each.
        alone: the settings of each row, with weight 1.
        scores: float64 `[rows, samples]`, in [0, 1], before weighing.
    """

    name: str
    points: Sequence[LayerConfig]
    row: Tensor
    alone: Sequence[LayerConfig]
    scores: Tensor


def score_layer(
    name: str, points: Sequence[LayerConfig], fit: Readings, scored: Sequence[Readings]
) -> LayerTable:
    """Score all candidates of a layer exactly as detectors with these settings would.

    Args:
        name: name of the layer.
        points: its candidates.
        fit: readings of the fitting subset.
        scored: readings to score, in the order of the columns of the table.
    """
    unweighted = [replace(point, weight=1.0) for point in points]
    alone = list(dict.fromkeys(unweighted))  # in the order of their first points
    groups: dict[tuple[str, float], list[LayerConfig]] = {}
    for point in alone:
        groups.setdefault((point.state, point.steepness), []).append(point)
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        found = pool.map(lambda group: _score_group(name, group, fit, scored), groups.values())
        rows = {point: scores for part in found for point, scores in part.items()}
    scores = torch.stack([rows[point] for point in alone])
    row = torch.tensor([alone.index(point) for point in unweighted], device=scores.device)
    return LayerTable(name, points, row, alone, scores)


def _score_group(
    name: str, group: Sequence[LayerConfig], fit: Readings, scored: Sequence[Readings]
) -> dict[LayerConfig, Tensor]:
    """Scores float64 `[samples]` of candidates that have the same states."""
    activation = fit[name].activation
    histograms = {
        m: Histogram.empty(activation.shape[1], m, activation.device)
        for m in sorted({point.n_bins for point in group})
    }
    for batch in fit.batches():
        states = states_of(batch[name], group[0])
        for histogram in histograms.values():
            histogram.update(states)
    parts: dict[LayerConfig, list[Tensor]] = {point: [] for point in group}
    for readings in scored:
        for batch in readings.batches():
            states = states_of(batch[name], group[0]).to(activation.device)
            hits = {m: histogram.hits(states) for m, histogram in histograms.items()}
            for point, part in parts.items():
                covered = hits[point.n_bins].clamp(max=point.full_count)
                total = covered.sum(dim=0, dtype=torch.int64)
                part.append(layer_score(total, point.full_count, states.shape[1]))
    return {point: torch.cat(part) for point, part in parts.items()}


class JointCandidates:
    """Evaluates joint candidates and keeps the best.

    A joint candidate is a row of `choice`, int64 `[candidates, layers]`: the index of the candidate
    of each layer. A weight of 0 leaves out a layer, and does not change the sum of the others.

    Of equal candidates, the one that OpenOOD's own sweep visits first is preferred, in whatever
    order they are tried. That sweep changes the first layer's settings fastest.

    Args:
        tables: the scores of the layers, in the detector's order.
        sizes: numbers of columns of ID validation, OOD validation and, if any, held-out training.
        objective: what to maximize.
        guard: candidates whose guard AUROC is further than this from 0.5 are excluded.
        top: number of candidates to keep.
        progress: called with the number of candidates that were just evaluated.

    Attributes:
        choice: the best candidates, best first, `[top, layers]`.
        values: their objectives.
        evaluated: how many were evaluated.
    """

    def __init__(
        self,
        tables: Sequence[LayerTable],
        sizes: Sequence[int],
        *,
        objective: Objective,
        guard: Optional[float],
        top: int,
        progress: Callable[[int], Any] = lambda n: None,
    ) -> None:
        self.tables, self.n_id, self.objective = tables, sizes[0], objective
        self.sizes = [len(table.points) for table in tables]
        #: by layer, the first candidate of weight 0; None if the layer is always used
        self.left_out = [
            next((k for k, p in enumerate(t.points) if not p.weight), None) for t in tables
        ]
        self.choice = np.empty((0, len(tables)), dtype=np.int64)
        self.values = np.empty(0)
        self.evaluated = 0
        self._limit, self._top, self._progress = guard, top, progress
        self._n_held = sum(sizes[2:])
        self._weights = [t.scores.new_tensor([point.weight for point in t.points]) for t in tables]
        split = [table.scores.split(list(sizes), dim=1) for table in tables]
        #: by layer, the scores of ID and OOD validation samples, `[rows, samples]`
        self.val = [torch.cat(parts[:2], dim=1) for parts in split]
        # held-out training samples in place of ID: they should not score higher
        self._held = [torch.cat([*parts[2:], parts[0]], dim=1) for parts in split]

    def measure(self, choice: Tensor, metric: Objective) -> Tensor:
        """`metric` of ID against OOD validation, `[candidates]`; -inf where no layer is left."""
        values = self._map(lambda part: metric(self._scores(self.val, part), self.n_id), choice)
        return values.masked_fill(self._total(choice.to(values.device)) <= 0, _EXCLUDED)

    def guard(self, choice: Tensor) -> Optional[Tensor]:
        """AUROC of held-out training against ID validation, `[candidates]`, or None without."""

        def work(part: Tensor) -> Tensor:
            return joined_auroc(self._scores(self._held, part), self._n_held)

        return self._map(work, choice) if self._n_held else None

    def guard_alone(self, layer: int) -> Optional[Tensor]:
        """`guard` of a layer by itself, for each row of its table."""
        return joined_auroc(self._held[layer], self._n_held) if self._n_held else None

    def evaluate(self, choice: np.ndarray, floor: float = float("inf")) -> np.ndarray:
        """Objectives of `choice` `[candidates, layers]`; -inf for what the guard excludes.

        Args:
            choice: the joint candidates.
            floor: the guard is not checked for candidates below this that are too low to keep.
        """
        rows = torch.from_numpy(choice)
        values = self.measure(rows, self.objective).cpu().numpy()
        self.evaluated += len(choice)
        lowest = float(self.values[-1]) if len(self.values) == self._top else _EXCLUDED
        if self._limit is not None:
            checked = np.flatnonzero((values >= min(floor, lowest)) & (values > _EXCLUDED))
            guards = self.guard(rows[torch.from_numpy(checked)]) if len(checked) else None
            if guards is not None:
                values[checked[np.abs(guards.cpu().numpy() - 0.5) > self._limit]] = _EXCLUDED
        good = np.flatnonzero((values >= lowest) & (values > _EXCLUDED))
        if len(good):
            self._keep_best(choice[good], values[good])
        self._progress(len(choice))
        return values

    def _keep_best(self, choice: np.ndarray, values: np.ndarray) -> None:
        choice = np.concatenate([self.choice, choice])
        values = np.concatenate([self.values, values])
        order = np.lexsort([*choice.T, -values])
        choice, values = choice[order], values[order]
        new = np.ones(len(order), dtype=bool)  # a candidate may be tried more than once
        new[1:] = (choice[1:] != choice[:-1]).any(axis=1)
        self.choice, self.values = choice[new][: self._top], values[new][: self._top]

    def _scores(self, layers: Sequence[Tensor], choice: Tensor) -> Tensor:
        """Sample scores `[candidates, samples]`; see `nac_openood.core.rule.combine`."""
        choice = choice.to(layers[0].device)
        by_layer = zip(layers, self.tables, self._weights, choice.t())
        parts = (s.index_select(0, t.row[k]).mul_(w[k][:, None]) for s, t, w, k in by_layer)
        total = self._total(choice)
        return reduce(Tensor.add_, parts).div_(total.masked_fill(total <= 0, 1.0)[:, None])

    def _total(self, choice: Tensor) -> Tensor:
        """Sums of weights, added in the order of `nac_openood.core.rule.combine`."""
        return reduce(torch.add, (w[picked] for w, picked in zip(self._weights, choice.t())))

    def _map(self, work: Callable[[Tensor], Tensor], choice: Tensor) -> Tensor:
        """`work` on pieces of `choice`, in threads on a CPU; the same numbers in any case."""
        pieces = choice.split(max(1, _PIECE // self.val[0].shape[1]))
        threads = torch.get_num_threads()
        if threads == 1 or len(pieces) == 1 or self.val[0].device.type != "cpu":
            return torch.cat([work(piece) for piece in pieces])
        with ThreadPoolExecutor(threads) as pool:
            return torch.cat(list(pool.map(work, pieces)))
