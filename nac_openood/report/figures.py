"""The figures of `nac_openood.tables`, drawn: lines, bars, distributions and matrices."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, Callable, Mapping, Optional, Sequence

from nac_openood.report import drawing
from nac_openood.report.blocks import Picture
from nac_openood.report.formatting import alt_text
from nac_openood.tables import BarGroups, Densities, Density, Figure, Lines, Matrix, Series

_COLORS = (drawing.OUR_COLOR, *drawing.OTHERS)
_SQUARE = 38


def picture_of(figure: Figure) -> Picture:
    """The figure as a picture, to be drawn by a page."""
    return _DRAWN[figure.type](figure)


def _lines(figure: Lines) -> Picture:
    top = 16 * ((len(figure.series) + 2) // 3) + 6
    width, height = 420, 300 + top

    def paint(canvas: Any) -> None:
        axis = canvas.add_axes((0.14, 44 / height, 0.83, 1 - (50 + top) / height))
        for number, series in enumerate(figure.series):
            _line(axis, series, number)
        if figure.log_x:
            drawing.log_axis(axis)
        if figure.mark is not None:
            axis.axvline(figure.mark, color=drawing.FAINT, lw=0.9, ls=":", zorder=0)
        if figure.diagonal:
            axis.plot([0, 100], [0, 100], color=drawing.FAINT, lw=0.9, ls=":", zorder=0)
            axis.set(xlim=(0, 100), ylim=(0, 100))
        axis.set(xlabel=figure.x_label, ylabel=figure.y_label)
        axis.grid()
        axis.legend(
            loc="lower left", bbox_to_anchor=(-0.12, 1.0), ncols=3, fontsize=8.5,
            columnspacing=1.2, handlelength=2.4, borderaxespad=0.2,
        )  # fmt: skip

    rows = ((s.name, [(f"{p[0]:g}", p[1]) for p in s.points]) for s in figure.series)
    return Picture(figure.title, alt_text(figure.title, rows), (width, height), paint)


def _line(axis: Any, series: Series, number: int) -> None:
    points: list[Any] = [p for p in series.points if p[1] is not None]
    color = drawing.INK if series.printed else _COLORS[number % len(_COLORS)]
    axis.plot(
        [p[0] for p in points], [p[1] for p in points], label=series.name, color=color, lw=1.7,
        ls=drawing.DASHES[number % len(drawing.DASHES)], ms=4.5,
        marker=drawing.MARKERS[number % len(drawing.MARKERS)],
    )  # fmt: skip
    spread = [(p[0], p[1] - p[2], p[1] + p[2]) for p in points if len(p) > 2 and p[2] is not None]
    if spread:
        axis.fill_between(*zip(*spread), color=color, alpha=0.15, lw=0)


def bars_picture(
    figure: BarGroups, spreads: Sequence[Optional[float]] = (), width: float = 420
) -> Picture:
    """Bars, with whiskers of a standard deviation per row where there are any."""
    many, origin = len(figure.names), figure.origin
    top, row_height, thick = (4, 17, 0.66) if many == 1 else (22, 11 * many + 8, 0.8 / many)
    height = 46 + top + row_height * len(figure.rows)
    names = [name for name, _ in figure.rows]
    left = min(0.5, (12.6 + 6.1 * max(map(len, names))) / width)

    def paint(canvas: Any) -> None:
        axis = canvas.add_axes((left, 40 / height, 0.9 - left, 1 - (40 + top) / height))
        for number, series in enumerate(figure.names):
            color, middle = _COLORS[number % len(_COLORS)], thick * (number + 0.5 - many / 2)
            for row, ((name, values), spread) in enumerate(zip_longest(figure.rows, spreads)):
                value, y, ours = values[number], row + middle, name in figure.ours
                if many == 1:
                    color = drawing.OUR_COLOR if ours else drawing.CALM
                axis.barh(y, (value or origin) - origin, 0.94 * thick, origin, color=color,
                          label=series if row == 0 else None)  # fmt: skip
                if spread is not None and value is not None:
                    axis.plot([value - spread, value + spread], [y, y], color=drawing.INK, lw=1)
                if value is not None:
                    end, weight = max(value + (spread or 0), origin), "bold" if ours else "normal"
                    drawing.write_value(axis, end, y, f"{value:.3g}", weight)
        drawing.name_rows(axis, names, figure.ours)
        shown = [v for _, values in figure.rows for v in values if v is not None]
        low, high = min([origin, *shown]), max([figure.end, *shown])
        axis.set_xlim(low, high if high > low else low + 1)
        axis.axvline(origin, color=drawing.FAINT, lw=0.8)
        axis.grid(axis="x")
        axis.set_xlabel(figure.x_label)
        if many > 1:
            axis.legend(
                loc="lower left", bbox_to_anchor=(0, 1.0), ncols=many, borderaxespad=0.2,
                fontsize=8.5, columnspacing=1.2, handlelength=1.4,
            )  # fmt: skip

    rows = ((name, zip(figure.names, row)) for name, row in figure.rows)
    return Picture(figure.title, alt_text(figure.title, rows), (width, height), paint)


def draw_density(axis: Any, panel: Density, ticks: int) -> tuple[Any, Any]:
    """ID samples filled, OOD samples as a dashed line; returns both for a legend."""
    color = drawing.ID_COLOR
    inside = axis.stairs(panel.inside, panel.edges, color=color, fill=True, alpha=0.35, lw=0)
    axis.stairs(panel.inside, panel.edges, color=color, lw=1.2)
    outside = axis.stairs(panel.outside, panel.edges, color=drawing.OOD_COLOR, ls="--", lw=1.6)
    axis.set_xlim(panel.edges[0], panel.edges[-1])
    axis.set_ylim(bottom=0)
    axis.set_yticks([])
    axis.locator_params(axis="x", nbins=ticks)
    axis.spines["left"].set_visible(False)
    return inside, outside


def _densities(figure: Densities) -> Picture:
    columns, rows = len(figure.columns), len(figure.rows)

    def paint(canvas: Any) -> None:
        canvas.set_layout_engine("constrained")
        grid = canvas.subplots(rows, columns, squeeze=False)
        for axes, (title, panels) in zip(grid, figure.rows):
            for axis, panel in zip(axes, panels):
                keys = draw_density(axis, panel, ticks=3)
                axis.set_title(panel.note, fontsize=9.5)
            axes[0].set_ylabel(title, rotation=0, ha="right", va="center", fontsize=11)
        for axis, title, panel in zip(grid[0], figure.columns, figure.rows[0][1]):
            axis.set_title(f"{title}\n{panel.note}", fontsize=9.5)
        canvas.supxlabel(figure.x_label, fontsize=11)
        names = (figure.inside, figure.outside)
        canvas.legend(keys, names, loc="lower left", ncols=2, borderaxespad=0)

    listed = "; ".join(
        f"{title}, {column}: {panel.note}"
        for title, panels in figure.rows
        for column, panel in zip(figure.columns, panels)
    )
    alt = f"{figure.title}: {figure.inside} against {figure.outside}. {listed}."
    return Picture(figure.title, alt, (110 + 172 * columns, 60 + 105 * rows), paint)


def _matrix(figure: Matrix) -> Picture:
    """Values above the middle of the limits in our color, below it in the other one."""
    columns, names = len(figure.columns), [name for name, _ in figure.rows]
    width, left = 420, 16 + 6.6 * max(map(len, names))
    height = 32 + _SQUARE * len(names)
    middle, half = sum(figure.limits) / 2, (figure.limits[1] - figure.limits[0]) / 2

    def paint(canvas: Any) -> None:
        from matplotlib.patches import Rectangle

        box = (left / width, 8 / height, 1 - (left + 8) / width, _SQUARE * len(names) / height)
        axis = canvas.add_axes(box)
        for row, (_, values) in enumerate(figure.rows):
            for column, value in enumerate(values):
                strength = 0.0 if value is None else min(1.0, abs(value - middle) / half)
                above = value is None or value >= middle
                color = drawing.OUR_COLOR if above else drawing.OOD_COLOR
                corner = (column - 0.48, row - 0.48)
                square = Rectangle(corner, 0.96, 0.96, color=color, alpha=0.9 * strength, lw=0)
                axis.add_patch(square)
                ink = drawing.PAPER if strength > 0.55 else drawing.INK  # light on dark squares
                text = "-" if value is None else f"{value:.2f}"
                axis.text(column, row, text, ha="center", va="center", fontsize=9, color=ink)
        axis.set(xlim=(-0.5, columns - 0.5), ylim=(len(names) - 0.5, -0.5))
        axis.set_xticks(range(columns), figure.columns)
        axis.set_yticks(range(len(names)), names)
        axis.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
        axis.spines[:].set_visible(False)

    alt = alt_text(figure.title, ((name, zip(figure.columns, row)) for name, row in figure.rows))
    return Picture(figure.title, alt, (width, height), paint)


_DRAWN: Mapping[str, Callable[[Any], Picture]] = {
    Lines.type: _lines,
    BarGroups.type: bars_picture,
    Densities.type: _densities,
    Matrix.type: _matrix,
}
