"""Which joint candidates to look at. A strategy feeds a leaderboard; the leaderboard remembers."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Callable, Iterator, Mapping, Optional

import numpy as np

from nac_openood.core.layer_config import whole_number
from nac_openood.errors import NACError
from nac_openood.search.leaderboard import Leaderboard

#: Joint candidates evaluated between two looks at the leaderboard or the clock.
_BLOCK = 4096
#: A grid above this would run for more than an hour; it is more likely a mistake.
GRID_LIMIT = 10**8
#: How often `random` leaves a layer out, where it may.
_LEFT_OUT = 0.25


@dataclass(frozen=True)
class Budget:
    """How much to try.

    Args:
        points: joint candidates that `random` tries.
        seconds: `random` stops here even if `points` are left. How far it gets then depends on
            the machine; the order of what it tries does not.
        restarts: starting points of `layerwise`.
    """

    points: int = 10_000
    seconds: Optional[float] = None
    restarts: int = 8

    def __post_init__(self) -> None:
        for name in ("points", "restarts"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), 1))
        if self.seconds is None and max(self.points, self.restarts) > GRID_LIMIT:
            raise NACError(
                f"{self.points} points or {self.restarts} restarts would run for more than an "
                "hour: set `seconds`, or try fewer."
            )
        if self.seconds is not None and not self.seconds > 0:
            raise NACError(f"seconds must be above 0 or None, got {self.seconds}.")


def grid(board: Leaderboard, budget: Budget, rng: np.random.Generator) -> None:
    """All joint candidates: the exact optimum of the lists."""
    sizes = board.joint.sizes
    n_points = math.prod(sizes)
    if n_points > GRID_LIMIT:
        raise NACError(
            f"this grid has {n_points} joint points, more than {GRID_LIMIT}: it would run for "
            "hours. Give shorter lists, or use strategy='layerwise' or 'random'."
        )
    for start in range(0, n_points, _BLOCK):
        index = np.arange(start, min(start + _BLOCK, n_points))
        board.evaluate(np.stack(np.unravel_index(index, sizes), axis=1))


def layerwise(board: Leaderboard, budget: Budget, rng: np.random.Generator) -> None:
    """Coordinate ascent: one layer at a time takes its best candidate, from several starts.

    The starts are every layer at the candidate that is best alone, each such layer by itself
    where layers may be left out, and random points.
    """
    for number, start in enumerate(_starts(board, rng)):
        if number >= budget.restarts:
            break
        _ascend(board, start)


def _starts(board: Leaderboard, rng: np.random.Generator) -> Iterator[np.ndarray]:
    joint = board.joint
    alone = [_best_alone(board, layer) for layer in range(len(joint.sizes))]
    yield np.array(alone)
    if all(k is not None for k in joint.left_out):
        for layer, best in enumerate(alone):
            start = np.array(joint.left_out)
            start[layer] = best
            yield start
    while True:
        yield _draw(board, rng, 1)[0]


def _best_alone(board: Leaderboard, layer: int) -> int:
    """The candidate of a layer that does best without the others, if it counts at all."""
    table = board.joint.tables[layer]
    values = board.joint.alone(layer, board.metric)[table.row].cpu().numpy()
    weights = np.array([point.weight for point in table.points])
    return int(np.where(weights > 0, values, -1.0).argmax())


def _ascend(board: Leaderboard, start: np.ndarray) -> None:
    """Improve `start` layer by layer until no layer can be improved."""
    best, value = start, float(board.evaluate(start[None])[0])
    layer, unchanged = 0, 0
    while unchanged < len(start):
        options = np.repeat(best[None], board.joint.sizes[layer], axis=0)
        options[:, layer] = np.arange(len(options))
        values = board.evaluate(options, floor=value)
        if values.max() > value:
            best, value, unchanged = options[values.argmax()], float(values.max()), 0
        unchanged += 1
        layer = (layer + 1) % len(start)


def random(board: Leaderboard, budget: Budget, rng: np.random.Generator) -> None:
    """Independent random points; an equal seed tries equal points in equal order."""
    deadline = math.inf if budget.seconds is None else time.monotonic() + budget.seconds
    for start in range(0, budget.points, _BLOCK):
        # a whole block is drawn even if less is used, so that a larger budget begins the same way
        drawn = _draw(board, rng, _BLOCK)
        board.evaluate(drawn[: budget.points - start])
        if time.monotonic() >= deadline:
            break


def _draw(board: Leaderboard, rng: np.random.Generator, n: int) -> np.ndarray:
    columns = []
    for size, out in zip(board.joint.sizes, board.joint.left_out):
        column = rng.integers(0, size, n)
        if out is not None:
            column[rng.random(n) < _LEFT_OUT] = out
        columns.append(column)
    return np.stack(columns, axis=1)


Strategy = Callable[[Leaderboard, Budget, np.random.Generator], None]
STRATEGIES: Mapping[str, Strategy] = {"grid": grid, "layerwise": layerwise, "random": random}
