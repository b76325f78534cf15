"""The best joint candidates seen so far, ties broken the same way every time."""

from __future__ import annotations

from typing import Callable, Optional

import numpy as np
import torch
from torch import Tensor

from nac_openood.core.layer_config import whole_number
from nac_openood.search.joint import Joint, Objective

NEVER = float("-inf")


class Leaderboard:
    """Evaluates candidates and remembers the `top` best.

    Of equal candidates the one that OpenOOD's own sweep visits first is better, in whatever order
    they were tried. That sweep changes the first layer's settings fastest.

    Args:
        joint: what to evaluate.
        metric: the objective.
        guard: candidates whose guard AUROC is further than this from 0.5 do not count.
        top: how many to remember.
        tell: called with the number of candidates that were just evaluated.
    """

    def __init__(
        self,
        joint: Joint,
        metric: Objective,
        guard: Optional[float],
        top: int,
        tell: Callable[[int], object] = lambda n: None,
    ) -> None:
        self.joint = joint
        self.evaluated = 0
        self.choice = np.empty((0, len(joint.sizes)), dtype=np.int64)
        self.values = np.empty(0)
        self.metric = metric
        self._guard, self._top, self._tell = guard, whole_number("top", top, 1), tell

    @property
    def lowest(self) -> float:
        """What a candidate must reach to be remembered."""
        return float(self.values[-1]) if len(self.values) == self._top else NEVER

    def evaluate(self, choice: np.ndarray, floor: float = float("inf")) -> np.ndarray:
        """Objectives of `choice` `[candidates, layers]`; -inf for what the guard excludes.

        Args:
            choice: the joint candidates.
            floor: the guard need not be asked about candidates that are both below this and too
                low to be remembered, so those may keep their value.
        """
        rows = torch.from_numpy(np.ascontiguousarray(choice, dtype=np.int64))
        values = self.joint.evaluate(rows, self.metric).cpu().numpy()
        self.evaluated += len(choice)
        if self._guard is not None:
            self._exclude(rows, values, min(floor, self.lowest))
        self._remember(choice, values)
        self._tell(len(choice))
        return values

    def _exclude(self, rows: Tensor, values: np.ndarray, floor: float) -> None:
        asked = np.flatnonzero((values >= floor) & (values > NEVER))
        if not len(asked):
            return
        guards = self.joint.guard(rows[torch.from_numpy(asked)])
        assert guards is not None and self._guard is not None
        values[asked[np.abs(guards.cpu().numpy() - 0.5) > self._guard]] = NEVER

    def _remember(self, choice: np.ndarray, values: np.ndarray) -> None:
        good = np.flatnonzero((values >= self.lowest) & (values > NEVER))
        if not len(good):
            return
        choice = np.concatenate([self.choice, choice[good]])
        values = np.concatenate([self.values, values[good]])
        order = np.lexsort([*choice.T, -values])
        choice, values = choice[order], values[order]
        fresh = np.ones(len(order), dtype=bool)  # a candidate may be tried more than once
        fresh[1:] = (choice[1:] != choice[:-1]).any(axis=1)
        self.choice, self.values = choice[fresh][: self._top], values[fresh][: self._top]
