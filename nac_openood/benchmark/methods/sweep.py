"""OpenOOD's hyperparameter search: a grid on validation data; the first best point wins."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Sequence

import numpy as np

from nac_openood.core.ranking import auroc
from nac_openood.progress import bar

Point = dict[str, Any]


class BestPoint(NamedTuple):
    """The best point, its validation AUROC, and how many points were tried."""

    point: Point
    auroc: float
    points: int

    def note(self, of: int) -> dict[str, Any]:
        """As JSON values for `Fit.search`; the sweep has `of` points with those left out."""
        note = {"objective": "auroc", "auroc": self.auroc, "points": self.points}
        return {**note, "left_out": of - self.points} if of > self.points else note


def best_point(
    points: Sequence[Point],
    validate: Callable[[Point], tuple[Any, Any]],
    *,
    title: str = "search",
    progress: Optional[bool] = None,
) -> Optional[BestPoint]:
    """The first point with the highest AUROC, or None if no point has an AUROC above 0.

    Args:
        points: from `search.space.grid_points`.
        validate: returns the scores of ID and OOD validation data, `[samples]` each, for a point.
        title: title of the progress bar.
        progress: None shows a progress bar on a terminal.
    """
    best: Optional[BestPoint] = None
    for point in bar(points, title, progress):
        scores = [np.asarray(part) for part in validate(point)]
        if not all(np.isfinite(part).all() for part in scores):
            continue  # OpenOOD's ViM with more dimensions than there are, for one
        value = float(auroc(*scores))
        if value > (best.auroc if best else 0.0):
            best = BestPoint(point, value, len(points))
    return best


def check_neighbors(k: int, size: int) -> Optional[str]:
    """Why KNN cannot use K on a training set of this size, or None if it can.

    OpenOOD's KNN gives all samples the same score then.
    """
    return f"K={k} exceeds the {size} training samples" if k > size else None


def vim_dims(dims: Sequence[int], wide: int) -> list[int]:
    """The subspace dimensions of ViM that are smaller than the features' `wide` dimensions.

    OpenOOD's sweep is made for 512 dimensions and more. If none of it fits, this is half of
    `wide`, as ViM's authors choose for small networks.
    """
    return [dim for dim in dims if dim < wide] or [wide // 2]
