"""A matrix of numbers, drawn as colored squares."""

from __future__ import annotations

from typing import Any

from nac_openood.report.blocks import Picture
from nac_openood.report.figures.canvas import FAINT, INK, OOD_COLOR, OUR_COLOR, PAPER
from nac_openood.report.words import alt_text
from nac_openood.tables import Matrix

_SQUARE, _WIDTH = 38, 420
_STRONG = 0.55  # above it, squares are dark enough for light ink


def matrix_picture(figure: Matrix) -> Picture:
    """Values above the middle of the limits in our color, below it in the other one."""
    columns, rows = len(figure.columns), len(figure.rows)
    longest = max(len(name) for name, _ in figure.rows)
    left, top = 16 + 6.6 * longest, 24
    wide = (_WIDTH - left - 8) / columns
    height = top + _SQUARE * rows + 8

    def paint(canvas: Any) -> None:
        box = (left / _WIDTH, 8 / height, wide * columns / _WIDTH, _SQUARE * rows / height)
        axis = canvas.add_axes(box)
        for row, (_, values) in enumerate(figure.rows):
            for column, value in enumerate(values):
                _square(axis, row, column, value, figure.limits)
        axis.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
        axis.set_xticks(range(columns), figure.columns)
        axis.set_yticks(range(rows), [name for name, _ in figure.rows])
        axis.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
        for spine in axis.spines.values():
            spine.set_visible(False)

    alt = alt_text(figure.title, ((name, zip(figure.columns, row)) for name, row in figure.rows))
    return Picture(figure.title, alt, (_WIDTH, height), paint)


def _square(axis: Any, row: int, column: int, value: Any, limits: Any) -> None:
    from matplotlib.patches import Rectangle

    low, high = limits
    middle = (low + high) / 2
    strength = 0.0 if value is None else min(1.0, abs(value - middle) / (high - middle))
    color = OUR_COLOR if value is None or value >= middle else OOD_COLOR
    corner = (column - 0.48, row - 0.48)
    axis.add_patch(Rectangle(corner, 0.96, 0.96, color=color, alpha=0.9 * strength, lw=0))
    text, ink = ("-", FAINT) if value is None else (f"{value:.2f}", INK)
    ink = PAPER if strength > _STRONG else ink
    axis.text(column, row, text, ha="center", va="center", fontsize=9, color=ink)
