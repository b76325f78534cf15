"""What to try: the paper's search space, lists of settings as candidates, and search strategies."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

import numpy as np

from nac_openood.core.layer_config import LayerConfig, whole_number
from nac_openood.detector.config import Sweep, check_sweep
from nac_openood.errors import NACError
from nac_openood.search.tables import JointCandidates

#: The paper's space. States of deep layers vary in a smaller range and want a steeper sigmoid.
#: Full weight comes first: of equally good candidates the first one is chosen.
PAPER_SPACE: Mapping[str, tuple[Any, ...]] = {
    "n_bins": (50, 500, 1000),
    "full_count": (5, 10, 50, 100, 500, 5000),
    "steepness_deepest": (50.0, 100.0, 300.0, 1000.0, 3000.0),
    "steepness": (0.001, 0.005, 0.01, 0.1, 1.0, 10.0),
    "weight": (1.0, 0.8, 0.6, 0.4, 0.2),
}
#: Joint candidates that are evaluated at once.
_BLOCK = 4096
#: A larger grid would run for more than an hour, and is probably a mistake.
GRID_LIMIT = 10**8
#: The probability with which `random` leaves out a layer, if it may.
_LEFT_OUT = 0.25


def paper_space(
    layers: Sequence[str], *, weights: bool = True
) -> dict[str, dict[str, tuple[Any, ...]]]:
    """The paper's space as a sweep.

    The deepest layer takes the steep list and the others take the gentle one. The second deepest
    takes both, because the paper's own settings for it (ResNet `layer3`) come from either.

    Args:
        layers: layer names, deepest first.
        weights: whether to search the weights, too; otherwise all layers have weight 1.
    """
    gentle, steep = PAPER_SPACE["steepness"], PAPER_SPACE["steepness_deepest"]
    by_depth = [steep, gentle + steep]
    return {
        name: {
            "n_bins": PAPER_SPACE["n_bins"],
            "full_count": PAPER_SPACE["full_count"],
            "steepness": by_depth[depth] if depth < len(by_depth) else gentle,
            **({"weight": PAPER_SPACE["weight"]} if weights else {}),
        }
        for depth, name in enumerate(layers)
    }


def layer_candidates(
    layers: Mapping[str, LayerConfig], sweep: Sweep, *, leave_out: bool = False
) -> dict[str, tuple[LayerConfig, ...]]:
    """Every layer's candidates, in the order of OpenOOD's sweep: the first list changes fastest.

    Args:
        layers: the settings by layer name; the sweep replaces what it lists.
        sweep: the values to try; a layer without any has a single candidate.
        leave_out: whether to append a candidate of weight 0, which leaves out the layer.
    """
    if not layers:
        raise NACError("no layers to search: pass e.g. {'avgpool': LayerConfig(), ...}.")
    check_sweep(layers, sweep)
    found = {}
    for name, base in layers.items():
        points = [dataclasses.replace(base, **point) for point in grid_points(sweep.get(name, {}))]
        if leave_out and len(layers) > 1:
            points.append(dataclasses.replace(points[0], weight=0.0))
        found[name] = tuple(points)
    if all(point.weight == 0 for points in found.values() for point in points):
        raise NACError(
            "all layer weights are zero in every candidate, so there would be no score. "
            "Give at least one layer a weight above 0."
        )
    return found


def grid_points(lists: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations of values, in OpenOOD's order: the first name changes fastest."""
    names = list(lists)
    reversed_points = itertools.product(*(lists[name] for name in reversed(names)))
    return [dict(zip(names, reversed(values))) for values in reversed_points]


# -- strategies: which joint candidates to evaluate -----------------------------------------


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


def grid(joint: JointCandidates, budget: Budget, rng: np.random.Generator) -> None:
    """Try all joint candidates, which finds the exact optimum."""
    n_points = math.prod(joint.sizes)
    if n_points > GRID_LIMIT:
        raise NACError(
            f"this grid has {n_points} joint points, more than {GRID_LIMIT}: it would run for "
            "hours. Give shorter lists, or use strategy='layerwise' or 'random'."
        )
    for start in range(0, n_points, _BLOCK):
        index = np.arange(start, min(start + _BLOCK, n_points))
        joint.evaluate(np.stack(np.unravel_index(index, joint.sizes), axis=1))


def layerwise(joint: JointCandidates, budget: Budget, rng: np.random.Generator) -> None:
    """Coordinate ascent: one layer at a time takes its best candidate, from several starts.

    The starts are every layer at the candidate that is best alone, each such layer by itself
    where layers may be left out, and random points.
    """
    for start in itertools.islice(_starts(joint, rng), budget.restarts):
        _ascend(joint, start)


def _starts(joint: JointCandidates, rng: np.random.Generator) -> Iterator[np.ndarray]:
    alone = []
    for layer, table in enumerate(joint.tables):
        values = joint.alone(layer, joint.objective)[table.row].cpu().numpy()
        weights = np.array([point.weight for point in table.points])
        alone.append(int(np.where(weights > 0, values, -1.0).argmax()))
    yield np.array(alone)
    if all(k is not None for k in joint.left_out):
        for layer, best in enumerate(alone):
            start = np.array(joint.left_out)
            start[layer] = best
            yield start
    while True:
        yield _draw(joint, rng, 1)[0]


def _ascend(joint: JointCandidates, start: np.ndarray) -> None:
    """Improve `start` layer by layer until no layer can be improved."""
    best, value = start, float(joint.evaluate(start[None])[0])
    layer, unchanged = 0, 0
    while unchanged < len(start):
        options = np.repeat(best[None], joint.sizes[layer], axis=0)
        options[:, layer] = np.arange(len(options))
        values = joint.evaluate(options, floor=value)
        if values.max() > value:
            best, value, unchanged = options[values.argmax()], float(values.max()), 0
        unchanged += 1
        layer = (layer + 1) % len(start)


def random(joint: JointCandidates, budget: Budget, rng: np.random.Generator) -> None:
    """Try independent random points; the same seed tries the same points in the same order."""
    deadline = math.inf if budget.seconds is None else time.monotonic() + budget.seconds
    for start in range(0, budget.points, _BLOCK):
        # always a whole block, so that a larger budget begins with the same points
        drawn = _draw(joint, rng, _BLOCK)
        joint.evaluate(drawn[: budget.points - start])
        if time.monotonic() >= deadline:
            break


def _draw(joint: JointCandidates, rng: np.random.Generator, n: int) -> np.ndarray:
    columns = []
    for size, out in zip(joint.sizes, joint.left_out):
        column = rng.integers(0, size, n)
        if out is not None:
            column[rng.random(n) < _LEFT_OUT] = out
        columns.append(column)
    return np.stack(columns, axis=1)


Strategy = Callable[[JointCandidates, Budget, np.random.Generator], None]
STRATEGIES: Mapping[str, Strategy] = {"grid": grid, "layerwise": layerwise, "random": random}
