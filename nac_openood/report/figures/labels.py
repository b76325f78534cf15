"""Names beside points, placed so that they do not overlap."""

from __future__ import annotations

from math import cos, hypot, radians, sin
from typing import Any, Optional, Sequence

from nac_openood.report.figures.canvas import FAINT

Box = tuple[float, float, float, float]  # left, bottom, right, top in pixels
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
    renderer = axis.figure.canvas.get_renderer()
    where = [tuple(axis.transData.transform(p[:2])) for p in points]
    frame = axis.get_window_extent(renderer)
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in where]
    for (x, y), (*point, text, style) in zip(where, points):
        width, height = _size(axis, renderer, text, style)
        spot = _free(x, y, width, height, taken, (frame.x0, frame.y0, frame.x1, frame.y1))
        if spot is None:
            continue
        taken.append((spot[0], spot[1], spot[0] + width, spot[1] + height))
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
    x: float, y: float, width: float, height: float, taken: Sequence[Box], frame: Box
) -> Optional[tuple[float, float]]:
    """The lower left corner of the nearest free place, or None if there is none."""
    for away in (6, 9, 13, 18, 24, 31, 39, 48, 58, 70):
        for angle in _ANGLES:
            dx, dy = cos(radians(angle)), sin(radians(angle))
            left = x + away * dx + width * (dx - 1) / 2
            bottom = y + away * dy + height * (dy - 1) / 2
            box = (left - _GAP, bottom - _GAP, left + width + _GAP, bottom + height + _GAP)
            if _inside(box, frame) and not any(_overlap(box, other) for other in taken):
                return left, bottom
    return None


def _inside(a: Box, b: Box) -> bool:
    return a[0] >= b[0] and a[1] >= b[1] and a[2] <= b[2] and a[3] <= b[3]


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
