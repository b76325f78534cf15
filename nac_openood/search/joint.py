"""Joint candidates: one candidate of every layer, combined exactly as the detector combines."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Mapping, Optional, Sequence

import torch
from torch import Tensor

from nac_openood.core.layer_config import LayerConfig
from nac_openood.core.metrics import joined_auroc, joined_fpr_at
from nac_openood.errors import NACError
from nac_openood.search.tables import LayerTable

#: Scores that one piece of work makes on the CPU.
_PIECE = 2**18

Objective = Callable[[Tensor, int], Tensor]


def _one_minus_fpr(scores: Tensor, n_id: int) -> Tensor:
    return 1 - joined_fpr_at(scores, n_id)


def _mean(scores: Tensor, n_id: int) -> Tensor:
    return (joined_auroc(scores, n_id) + _one_minus_fpr(scores, n_id)) / 2


#: What to make as large as possible: `([candidates, samples], n_id) -> [candidates]`.
OBJECTIVES: Mapping[str, Objective] = {
    "auroc": joined_auroc,
    "fpr95": _one_minus_fpr,
    "mean": _mean,
}


class Joint:
    """The product of the layers' candidates.

    A joint candidate is a row of `choice`, int64 `[candidates, layers]`: which of its candidates
    each layer takes. A weight of 0 leaves a layer out, which changes no bit of the others' sum.

    Args:
        tables: the layers, in the detector's order.
        n_id: how many columns are ID validation; they come first.
        n_ood: how many are OOD validation, after those; the rest is held-out training.
    """

    def __init__(self, tables: Sequence[LayerTable], n_id: int, n_ood: int) -> None:
        self.tables = tables
        self.sizes = [len(table.points) for table in tables]
        #: by layer, the first candidate of weight 0, or None where the layer always counts
        self.left_out = [
            next((k for k, p in enumerate(t.points) if not p.weight), None) for t in tables
        ]
        self._n_id, self._n_val = n_id, n_id + n_ood
        self._n_held = tables[0].scores.shape[1] - self._n_val
        self._device = tables[0].scores.device
        self._rows = [table.row.to(self._device) for table in tables]
        self._weights = [
            torch.tensor([p.weight for p in t.points], dtype=torch.float64, device=self._device)
            for t in tables
        ]
        scores = [table.scores.to(self._device) for table in tables]
        self._val = [part[:, : self._n_val].contiguous() for part in scores]
        # held-out training samples take the part of ID: they should not score higher
        self._guard = [torch.cat([p[:, self._n_val :], p[:, :n_id]], dim=1) for p in scores]

    def evaluate(self, choice: Tensor, metric: Objective) -> Tensor:
        """`metric` of ID against OOD validation, `[candidates]`; -inf where no layer is left."""
        values = self._map(lambda part: metric(self._scores(self._val, part), self._n_id), choice)
        return values.masked_fill(self._total(choice.to(values.device)) <= 0, float("-inf"))

    def alone(self, layer: int, metric: Objective) -> Tensor:
        """`metric` of a layer by itself, for each row of its table."""
        return metric(self._val[layer], self._n_id)

    def alone_guard(self, layer: int) -> Optional[Tensor]:
        """`guard` of a layer by itself, for each row of its table."""
        return joined_auroc(self._guard[layer], self._n_held) if self._n_held else None

    def guard(self, choice: Tensor) -> Optional[Tensor]:
        """AUROC of held-out training against ID validation, `[candidates]`, or None without."""
        if not self._n_held:
            return None
        return self._map(
            lambda part: joined_auroc(self._scores(self._guard, part), self._n_held), choice
        )

    def configs(self, row: Sequence[int]) -> dict[str, LayerConfig]:
        """The settings of one joint candidate, without the layers it leaves out."""
        chosen = {t.name: t.points[k] for t, k in zip(self.tables, row)}
        return {name: point for name, point in chosen.items() if point.weight > 0}

    def _scores(self, tables: Sequence[Tensor], choice: Tensor) -> Tensor:
        """Sample scores `[candidates, samples]`; see `nac_openood.core.coverage.combine`."""
        choice = choice.to(self._device)
        added = self._weighted(tables, choice, 0)
        for layer in range(1, len(tables)):
            added += self._weighted(tables, choice, layer)
        total = self._total(choice)
        return added.div_(total.masked_fill(total <= 0, 1.0)[:, None])

    def _weighted(self, tables: Sequence[Tensor], choice: Tensor, layer: int) -> Tensor:
        picked = choice[:, layer]
        scores = tables[layer].index_select(0, self._rows[layer][picked])
        return scores.mul_(self._weights[layer][picked][:, None])

    def _total(self, choice: Tensor) -> Tensor:
        """Sums of weights, added in the order of `nac_openood.core.coverage.total_weight`."""
        total = self._weights[0][choice[:, 0]]
        for layer, weights in enumerate(self._weights[1:], start=1):
            total = total + weights[choice[:, layer]]
        return total

    def _map(self, work: Callable[[Tensor], Tensor], choice: Tensor) -> Tensor:
        """`work` on pieces of `choice`, side by side on a CPU; the same numbers in any case."""
        pieces = choice.split(max(1, _PIECE // self._val[0].shape[1]))
        threads = torch.get_num_threads()
        if threads == 1 or len(pieces) == 1 or self._device.type != "cpu":
            return torch.cat([work(piece) for piece in pieces])
        with ThreadPoolExecutor(threads) as pool:
            return torch.cat(list(pool.map(work, pieces)))


def objective_named(name: str) -> Objective:
    """The objective, or an error that lists what there is."""
    if name not in OBJECTIVES:
        raise NACError(f"unknown objective '{name}'; expected one of {list(OBJECTIVES)}.")
    return OBJECTIVES[name]
