"""Names beside points, placed so that they do not overlap."""

from __future__ import annotations

from math import cos, hypot, radians, sin
from typing import Any, Optional, Sequence

from nac_openood.report.figures.canvas import FAINT

_GAP = 1.5
#: Right, left, above, below, then in between.
_ANGLES = (0, 180, 90, 270, 45, 135, 225, 315, 22, 338, 158, 202)


def label_points(axis: Any, points: Sequence[tuple[float, float, str, Any]]) -> None:
    """Write a text near each point; the first ones choose their place first.

    A text goes to the nearest place that is free of points and of other texts. If that is far
    away, a line connects the two; if there is none, the text is left out.

    Args:
        axis: with its final limits.
        points: x, y, the text, and its style as matplotlib takes it.
    """
    from matplotlib.transforms import Bbox

    renderer = axis.figure.canvas.get_renderer()
    where = [tuple(axis.transData.transform(p[:2])) for p in points]
    frame = axis.get_window_extent(renderer)
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in where]
    for (x, y), (*point, text, style) in zip(where, points):
        width, height = _size(axis, renderer, text, style)
        spot = _free(x, y, width, height, taken, frame)
        if spot is None:
            continue
        taken.append(Bbox.from_bounds(*spot, width, height))
        middle = (spot[0] + width / 2 - x, spot[1] + height / 2 - y)
        far = hypot(max(abs(middle[0]) - width / 2, 0), max(abs(middle[1]) - height / 2, 0)) > 9
        arrow = {"arrowstyle": "-", "color": FAINT, "lw": 0.6, "shrinkA": 0, "shrinkB": 3}
        axis.annotate(
            text, point, middle, textcoords="offset pixels", ha="center", va="center",
            arrowprops=arrow if far else None, **style,
        )  # fmt: skip


def _size(axis: Any, renderer: Any, text: str, style: Any) -> tuple[float, float]:
    probe = axis.text(0, 0, text, transform=None, **style)
    box = probe.get_window_extent(renderer)
    probe.remove()
    return box.width, box.height


def _free(
    x: float, y: float, width: float, height: float, taken: Sequence[Any], frame: Any
) -> Optional[tuple[float, float]]:
    """The lower left corner of the nearest free place, or None if there is none."""
    from matplotlib.transforms import Bbox

    for away in (6, 9, 13, 18, 24, 31, 39, 48, 58, 70):
        for angle in _ANGLES:
            dx, dy = cos(radians(angle)), sin(radians(angle))
            left = x + away * dx + width * (dx - 1) / 2
            bottom = y + away * dy + height * (dy - 1) / 2
            box = Bbox.from_bounds(left, bottom, width, height).padded(_GAP)
            inside = frame.contains(*box.min) and frame.contains(*box.max)
            if inside and not box.count_overlaps(taken):
                return left, bottom
    return None
