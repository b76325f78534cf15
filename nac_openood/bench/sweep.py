"""OpenOOD's hyperparameter protocol: every point of a grid on validation data, the first best."""

from __future__ import annotations

from itertools import product
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from nac_openood.progress import bar
from nac_openood.ranking import auroc

Point = dict[str, Any]


class Found(NamedTuple):
    """The best point, its validation AUROC and how many points were tried."""

    point: Point
    auroc: float
    points: int

    def told(self) -> dict[str, Any]:
        """As JSON values for `Fit.search`."""
        return {"objective": "auroc", "auroc": self.auroc, "points": self.points}


def grid(lists: Mapping[str, Sequence[Any]]) -> list[Point]:
    """All combinations in OpenOOD's order: the first name changes fastest."""
    names = list(lists)
    turned = product(*(lists[name] for name in reversed(names)))
    return [dict(zip(names, reversed(values))) for values in turned]


def best_point(
    points: Sequence[Point],
    validate: Callable[[Point], tuple[Any, Any]],
    *,
    title: str = "search",
    progress: Optional[bool] = None,
) -> Optional[Found]:
    """The first point with the highest AUROC, or None where no point ranks anything.

    Args:
        points: of `grid`.
        validate: from a point to scores of ID and OOD validation data, `[samples]` each.
        title: of the progress bar.
        progress: None shows one on a terminal.
    """
    best: Optional[Found] = None
    for point in bar(points, title, progress):
        scores = [np.asarray(part) for part in validate(point)]
        if not all(np.isfinite(part).all() for part in scores):
            continue  # OpenOOD's ViM with more dimensions than there are, for one
        value = float(auroc(*scores))
        if value > (best.auroc if best else 0.0):
            best = Found(point, value, len(points))
    return best


def vim_dims(dims: Sequence[int], wide: int) -> list[int]:
    """Those of ViM's subspace dimensions that leave something of features with `wide` dimensions.

    OpenOOD's sweep is made for 512 and more; where none of it fits, half of the features remains,
    as ViM's authors do with small networks.
    """
    return [dim for dim in dims if dim < wide] or [wide // 2]
