"""Figures of findings, drawn: lines, bars and distributions."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from nac_openood.report.analysis.matrix import matrix_picture
from nac_openood.report.blocks import Picture
from nac_openood.report.figures import canvas
from nac_openood.report.figures.distributions import draw_density
from nac_openood.report.words import alt_text
from nac_openood.tables import BarGroups, Densities, Figure, Lines, Matrix, Series

_COLORS = (canvas.OUR_COLOR, *canvas.OTHERS)
_LINES_SIZE = (420, 300)
_BAR_WIDTH, _BAR_ROW = 420, 17
_PANEL = (172, 118)


def picture_of(figure: Figure) -> Picture:
    """The figure as a picture, to be drawn by a page."""
    return _DRAWN[figure.type](figure)


def _lines(figure: Lines) -> Picture:
    rows = (len(figure.series) + 2) // 3
    top = 16 * rows + 6
    width, height = _LINES_SIZE[0], _LINES_SIZE[1] + top

    def paint(drawing: Any) -> None:
        axis = drawing.add_axes((0.14, 44 / height, 0.83, 1 - (50 + top) / height))
        for number, series in enumerate(figure.series):
            _line(axis, series, number)
        if figure.log_x:
            canvas.log_axis(axis)
        if figure.mark is not None:
            axis.axvline(figure.mark, color=canvas.FAINT, lw=0.9, ls=":", zorder=0)
        if figure.diagonal:
            axis.plot([0, 100], [0, 100], color=canvas.FAINT, lw=0.9, ls=":", zorder=0)
            axis.set(xlim=(0, 100), ylim=(0, 100))
        axis.set_xlabel(figure.x_label)
        axis.set_ylabel(figure.y_label)
        axis.grid()
        axis.legend(
            loc="lower left", bbox_to_anchor=(-0.12, 1.0), ncols=3, fontsize=8.5,
            columnspacing=1.2, handlelength=2.4, borderaxespad=0.2,
        )  # fmt: skip

    alt = alt_text(
        figure.title, ((s.name, [(f"{p[0]:g}", p[1]) for p in s.points]) for s in figure.series)
    )
    return Picture(figure.title, alt, (width, height), paint)


def _line(axis: Any, series: Series, number: int) -> None:
    points: list[Any] = [p for p in series.points if p[1] is not None]
    x, y = [p[0] for p in points], [p[1] for p in points]
    color = canvas.INK if series.printed else _COLORS[number % len(_COLORS)]
    look = {"color": color, "ls": canvas.DASHES[number % len(canvas.DASHES)], "lw": 1.7, "ms": 4.5}
    axis.plot(x, y, label=series.name, marker=canvas.MARKERS[number % len(canvas.MARKERS)], **look)
    spread = [(p[0], p[1] - p[2], p[1] + p[2]) for p in points if len(p) > 2 and p[2] is not None]
    if spread:
        axis.fill_between(*zip(*spread), color=color, alpha=0.15, lw=0)


def _bars(figure: BarGroups) -> Picture:
    many, origin = len(figure.names), figure.origin
    top, row_height, thick = (4, _BAR_ROW, 0.66) if many == 1 else (22, 11 * many + 8, 0.8 / many)
    height = 46 + top + row_height * len(figure.rows)
    longest = max(len(name) for name, _ in figure.rows)
    left = min(0.5, 0.03 + 0.0145 * longest)

    def paint(drawing: Any) -> None:
        axis = drawing.add_axes((left, 40 / height, 0.9 - left, 1 - (40 + top) / height))
        for number in range(many):
            for row, (name, values) in enumerate(figure.rows):
                value = values[number]
                if value is not None:
                    single = canvas.OUR_COLOR if name in figure.ours else canvas.CALM
                    color = _COLORS[number % len(_COLORS)] if many > 1 else single
                    y = row if many == 1 else row - 0.4 + thick * (number + 0.5)
                    axis.barh(y, value - origin, left=origin, height=thick * 0.94, color=color)
                    canvas.write_value(axis, max(value, origin), y, f"{value:.1f}")
        names = [name for name, _ in figure.rows]
        canvas.name_rows(axis, names, [name in figure.ours for name in names])
        shown = [v for _, values in figure.rows for v in values if v is not None]
        axis.set_xlim(min([origin, *shown]), max([figure.end, *shown]))
        axis.axvline(origin, color=canvas.FAINT, lw=0.8)
        axis.grid(axis="x")
        axis.set_xlabel(figure.x_label)
        if many > 1:
            _bar_key(axis, figure.names)

    alt = alt_text(figure.title, ((name, zip(figure.names, row)) for name, row in figure.rows))
    return Picture(figure.title, alt, (_BAR_WIDTH, height), paint)


def _bar_key(axis: Any, names: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    keys = [Patch(color=_COLORS[i % len(_COLORS)], label=name) for i, name in enumerate(names)]
    axis.legend(
        handles=keys, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(names),
        borderaxespad=0.2, fontsize=8.5, columnspacing=1.2, handlelength=1.4,
    )  # fmt: skip


def _densities(figure: Densities) -> Picture:
    columns, rows = len(figure.columns), len(figure.rows)
    left, top, bottom = 104, 48, 40
    width, height = left + _PANEL[0] * columns + 6, top + _PANEL[1] * rows + bottom
    room = {
        "left": (left + 8) / width, "right": 1 - 22 / width, "wspace": 24 / (_PANEL[0] - 24),
        "top": 1 - (top + 22) / height, "bottom": (bottom + 26) / height,
        "hspace": 48 / (_PANEL[1] - 48),
    }  # fmt: skip

    def paint(drawing: Any) -> None:
        large: Any = {"fontsize": 11}
        grid = drawing.subplots(rows, columns, squeeze=False, gridspec_kw=room)
        for axes, (title, panels) in zip(grid, figure.rows):
            for axis, panel in zip(axes, panels):
                keys = draw_density(axis, panel, ticks=3)
                axis.set_title(panel.note, fontsize=9.5, pad=3, loc="left")
            at = ("figure points", "axes fraction")
            axes[0].annotate(title, (4, 0.5), xycoords=at, va="center", **large)
        for axis, title in zip(grid[0], figure.columns):
            at = ("axes fraction", "figure fraction")
            axis.annotate(title, (0.5, 1 - 38 / height), xycoords=at, ha="center", **large)
        drawing.text((left + width) / 2 / width, 6 / height, figure.x_label, ha="center", **large)
        drawing.legend(
            keys, (figure.inside, figure.outside), loc="upper left", ncols=2, borderaxespad=0,
            bbox_to_anchor=(4 / width, 1 - 2 / height), **large,
        )  # fmt: skip

    listed = "; ".join(
        f"{title}, {column}: {panel.note}"
        for title, panels in figure.rows
        for column, panel in zip(figure.columns, panels)
    )
    alt = f"{figure.title}: {figure.inside} against {figure.outside}. {listed}."
    return Picture(figure.title, alt, (width, height), paint)


_DRAWN: Mapping[str, Callable[[Any], Picture]] = {
    Lines.type: _lines,
    BarGroups.type: _bars,
    Densities.type: _densities,
    Matrix.type: matrix_picture,
}
