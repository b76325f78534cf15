"""Names beside points, placed so that they can be read."""

from __future__ import annotations

from math import hypot
from typing import Any, Iterator, Optional, Sequence

from nac_openood.report.figures.canvas import FAINT

Box = tuple[float, float, float, float]  # left, bottom, right, top in pixels
_GAP = 1.5


def label_points(
    axis: Any, points: Sequence[tuple[float, float]], texts: Sequence[str], styles: Sequence[Any]
) -> None:
    """Write a text near each point; the first texts have the first choice of places.

    A text goes to the nearest place that is free of points and of other texts; a line leads to
    those that had to go far.
    """
    renderer = axis.figure.canvas.get_renderer()
    where = [tuple(axis.transData.transform(p)) for p in points]
    frame = axis.get_window_extent(renderer)
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in where]
    for (x, y), point, text, style in zip(where, points, texts, styles):
        width, height = _size(axis, renderer, text, style)
        spot = _free(x, y, width, height, taken, (frame.x0, frame.y0, frame.x1, frame.y1))
        if spot is None:
            continue  # the table has the number; a heap of letters helps nobody
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
    """The lower left corner of the nearest free place, or None where all is full."""
    for left, bottom in _places(x, y, width, height):
        box = (left - _GAP, bottom - _GAP, left + width + _GAP, bottom + height + _GAP)
        inside = (
            box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] and box[3] <= frame[3]
        )
        if inside and not any(_overlap(box, other) for other in taken):
            return left, bottom
    return None


def _places(x: float, y: float, width: float, height: float) -> Iterator[tuple[float, float]]:
    """Right, left, above, below, then the corners; then the same ever further away."""
    for away in (6, 9, 13, 18, 24, 31, 39, 48, 58, 70):
        middle_x, middle_y = x - width / 2, y - height / 2
        right, left, above, below = x + away, x - away - width, y + away, y - away - height
        yield from ((right, middle_y), (left, middle_y), (middle_x, above), (middle_x, below))
        near = 0.7 * away
        for dx in (x + near, x - near - width):
            for dy in (y + near, y - near - height):
                yield dx, dy
        yield from ((right, y + near / 2), (right, y - near / 2 - height))
        yield from ((left, y + near / 2), (left, y - near / 2 - height))


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
