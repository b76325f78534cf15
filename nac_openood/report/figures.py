"""Figures drawn with matplotlib, as small, reproducible SVG that takes its colors from the page."""

from __future__ import annotations

import importlib.util
import io
import re
from pathlib import Path
from typing import Any, Callable, Iterable, NamedTuple, Optional, Sequence, Union

import numpy as np
from markupsafe import Markup

from nac_openood import files
from nac_openood.core.layer_config import LayerConfig
from nac_openood.errors import NACError
from nac_openood.search.run import Candidate, SearchResult
from nac_openood.tables import BarGroups, Densities, Figure, Lines, Matrix

# Okabe and Ito's palette, which is distinguishable with any color vision. Lines and markers also
# differ in shape.
OUR_COLOR, ID_COLOR, OOD_COLOR = "#0072b2", "#009e73", "#d55e00"
INK, FAINT, GRID, PAPER, CALM = "#1b2430", "#5c6773", "#e4e8ed", "#fefefe", "#a9b4c0"
_COLORS = (OUR_COLOR, OOD_COLOR, ID_COLOR, "#cc79a7", "#e69f00", "#56b4e9")
_DASHES = ("-", (0, (5, 2)), (0, (1.2, 1.4)), (0, (6, 2, 1.2, 2)), (0, (3, 1.5)), "-.")
_MARKERS = ("o", "s", "^", "v", "P", "X")
_MANY = 50  # lines of more points have no markers, and are not described point by point
#: Colors that the page sets, so that ink is light on a dark page.
_VARIABLES = {
    INK: "--ink", FAINT: "--faint", GRID: "--grid", PAPER: "--paper", CALM: "--calm",
    OUR_COLOR: "--ours", ID_COLOR: "--id", OOD_COLOR: "--ood",
}  # fmt: skip
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: selectable, and in the page's own font
    "text.parse_math": False,  # names may contain "$"
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlesize": "medium",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "grid.color": GRID,
    "legend.frameon": False,
    "legend.borderaxespad": 0,
    "legend.columnspacing": 1.2,
    "lines.markersize": 4.5,
    **{f"{axis}.color": FAINT for axis in ("xtick", "ytick")},
    **{f"{axis}.labelcolor": INK for axis in ("xtick", "ytick")},
}
#: Greek alpha and the multiplication sign, which a linter takes for mistyped letters.
_ALPHA, _CROSS = "\u03b1", "\u00d7"


class Picture(NamedTuple):
    """A figure that is drawn when the page is made.

    Args:
        title: above it.
        alt: what it shows, in words with numbers.
        size: width and height in CSS pixels.
        paint: draws into an empty matplotlib figure.
    """

    title: str
    alt: str
    size: tuple[float, float]
    paint: Callable[[Any], None]


def svg(picture: Picture, key: str) -> Markup:
    """Draw a picture as inline SVG, without what a page does not need.

    Args:
        picture: what to draw.
        key: unique on the page, which makes the ids inside the SVG unique.

    Raises:
        NACError: if matplotlib is not installed.
    """
    text = _drawn(picture, key)
    unneeded = r"<metadata>.*?</metadata>|<!--.*?-->|<defs>\s*<style.*?</style>\s*</defs>"
    text = re.sub(unneeded, "", text[text.index("<svg") :], flags=re.DOTALL)
    text = text.replace("xlink:href", "href")
    # ids that nothing refers to are left out
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    # a hundredth of a pixel is enough for coordinates; numbers that people read stay as they are
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), text)
    for color, variable in _VARIABLES.items():
        text = text.replace(color, f"var({variable})")
    text = re.sub(r">\s+<", "><", text)
    width, height = (f"{side:g}" for side in picture.size)
    head = Markup(
        '<svg class="plot" role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}" height="{}">'
    ).format(picture.alt, width, height, width, height)
    return head + Markup(text[text.index(">") + 1 :].strip())


def svg_file(figure: Figure) -> str:
    """Draw a figure as an SVG file of its own, on white paper.

    Raises:
        NACError: if matplotlib is not installed.
    """
    return _drawn(picture_of(figure), figure.title, paper="white")


def _drawn(picture: Picture, key: str, paper: str = "none") -> str:
    """The SVG as matplotlib writes it."""
    check_matplotlib()
    import matplotlib
    from cycler import cycler

    out = io.StringIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the user's matplotlibrc must not change the page
        cycle = cycler(color=_COLORS) + cycler(linestyle=_DASHES) + cycler(marker=_MARKERS)
        # ids are hashes with the salt
        own: Any = {"svg.hashsalt": key, "figure.facecolor": paper, "axes.prop_cycle": cycle}
        matplotlib.rcParams.update({**_STYLE, **own})
        figure = blank((picture.size[0] / 72, picture.size[1] / 72), dpi=72)
        picture.paint(figure)
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def check_matplotlib() -> None:
    """Raise an error that says what to install if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise NACError(
            "drawing needs matplotlib, which is not installed: pip install 'nac-openood[plot]'."
        )


def blank(inches: tuple[float, float], dpi: int) -> Any:
    """An empty matplotlib figure, made without touching global state.

    Raises:
        NACError: if matplotlib is not installed.
    """
    check_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=inches, dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def log_axis(axis: Any) -> None:
    """Make the x axis logarithmic, with decimal numbers: 0.1, 1, 10."""
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axis.xaxis.set_minor_formatter("")


def picture_of(figure: Union[Figure, Picture]) -> Picture:
    """The figure as a picture, to be drawn by a page."""
    found: Picture = figure if isinstance(figure, Picture) else _PICTURES[type(figure)](figure)
    return found


def _lines(figure: Lines) -> Picture:
    width, columns = 350, max(1, 350 // (36 + 6 * max(len(s.name) for s in figure.series)))

    def paint(canvas: Any) -> None:
        axis = canvas.subplots()
        guide = {"color": FAINT, "lw": 0.9, "ls": ":", "marker": ""}
        for series in figure.series:
            points: list[Any] = [p for p in series.points if p[1] is not None]
            style = {"color": INK} if series.printed else {}
            style |= {"marker": ""} if len(points) > _MANY else {}
            (line,) = axis.plot(*zip(*(p[:2] for p in points)), label=series.name, **style)
            spread = [(x, y - s[0], y + s[0]) for x, y, *s in points if s and s[0] is not None]
            if spread:
                axis.fill_between(*zip(*spread), color=line.get_color(), alpha=0.15, lw=0)
        if figure.log_x:
            log_axis(axis)
        for line, at in ((axis.axvline, figure.mark), (axis.axhline, figure.level)):
            if at is not None:
                line(at, **guide)
        if figure.diagonal:
            axis.plot([0, 100], [0, 100], **guide)
            axis.set(xlim=(0, 100), ylim=(0, 100))
        axis.set(xlabel=figure.x_label, ylabel=figure.y_label)
        axis.grid()
        canvas.legend(loc="outside upper left", ncols=columns, handlelength=2.6)

    few = [s.points if len(s.points) <= _MANY else () for s in figure.series]
    words = ((s.name, [(f"{p[0]:g}", p[1]) for p in own]) for s, own in zip(figure.series, few))
    height = 270 + 16 * -(-len(figure.series) // columns)
    return Picture(figure.title, _alt(figure.title, words), (width, height), paint)


def _bars(figure: BarGroups) -> Picture:
    """Several bars in a row differ in color; among rows of one bar each, ours are highlighted."""
    many, origin = len(figure.names), figure.origin
    names = [name for name, _ in figure.rows]
    ours = [name in figure.ours for name in names]
    height = 50 + 17 * len(names) if many == 1 else 70 + (11 * many + 8) * len(names)

    def paint(canvas: Any) -> None:
        axis = canvas.subplots()
        thick = 0.66 if many == 1 else 0.8 / many
        spreads = [spread or 0 for spread in figure.spreads] or None
        values = np.array([row for _, row in figure.rows], float)  # None becomes NaN
        for number, (series, own) in enumerate(zip(figure.names, values.T)):
            colors = [OUR_COLOR if highlighted else CALM for highlighted in ours]
            style = {
                "color": colors if many == 1 else _COLORS[number % len(_COLORS)],
                "ecolor": INK,
            }
            at = np.arange(len(names)) + thick * (number + 0.5 - many / 2)
            widths = np.nan_to_num(own - origin)
            bars = axis.barh(at, widths, 0.94 * thick, origin, label=series, xerr=spreads, **style)
            axis.bar_label(bars, ["" if v != v else f"{v:.3g}" for v in own], padding=4)
        low, high = np.nanmin([origin, *values.flat]), np.nanmax([figure.end, *values.flat])
        axis.set(xlim=(low, high if high > low else low + 1), ylim=(len(names) - 0.4, -0.6))
        axis.set_xlabel(figure.x_label)
        axis.set_yticks(range(len(names)), names)
        for label in np.array(axis.get_yticklabels())[ours]:
            label.set(weight="bold", color=OUR_COLOR)
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
        axis.axvline(origin, color=FAINT, lw=0.8)
        axis.grid(axis="x")
        if many > 1:
            canvas.legend(loc="outside upper left", ncols=many, handlelength=1.4)

    words = ((name, zip(figure.names, row)) for name, row in figure.rows)
    return Picture(figure.title, _alt(figure.title, words), (figure.width, height), paint)


def _densities(figure: Densities) -> Picture:
    """ID samples filled, OOD samples as a dashed line."""
    columns, rows = len(figure.columns), len(figure.rows)

    def paint(canvas: Any) -> None:
        grid = canvas.subplots(rows, columns, squeeze=False)
        heads = [f"{column}\n".lstrip() for column in figure.columns]
        for axes, (title, panels) in zip(grid, figure.rows):
            style = {"weight": "bold", "color": OUR_COLOR} if title in figure.ours else {}
            axes[0].set_ylabel(title, rotation=0, ha="right", va="center", **style)
            for axis, panel, head in zip(axes, panels, heads):
                inside = {"edgecolor": ID_COLOR, "linewidth": 1.2, "facecolor": f"{ID_COLOR}59"}
                axis.stairs(panel.inside, panel.edges, fill=True, label=figure.inside, **inside)
                outside = {"edgecolor": OOD_COLOR, "linewidth": 1.5, "linestyle": "--"}
                axis.stairs(panel.outside, panel.edges, label=figure.outside, **outside)
                axis.set(xlim=(panel.edges[0], panel.edges[-1]), ylim=(0, None), yticks=[])
                axis.set_title(f"{head}{panel.note}".strip())
                axis.locator_params(axis="x", nbins=3)
                axis.spines["left"].set_visible(False)
            heads = [""] * columns  # above the first row only
        canvas.supxlabel(figure.x_label, fontsize=9)
        canvas.legend(*axis.get_legend_handles_labels(), loc="outside upper left", ncols=2)

    listed = "; ".join(
        f"{title}{column and f', {column}'}: {panel.note}"
        for title, panels in figure.rows
        for column, panel in zip(figure.columns, panels)
    )
    alt = f"{figure.title}: {figure.inside} against {figure.outside}. {listed}."
    return Picture(figure.title, alt, (128 + 172 * columns, 60 + max(140, 96 * rows)), paint)


def _matrix(figure: Matrix) -> Picture:
    """Values above the middle of the limits in our color, below it in the other one."""
    names, (low, high) = [name for name, _ in figure.rows], figure.limits

    def paint(canvas: Any) -> None:
        axis = canvas.subplots()
        for row, (_, values) in enumerate(figure.rows):
            for column, value in enumerate(values):
                # from -1 to 1, and 0 in the middle of the limits
                offset = 0 if value is None else (2 * value - low - high) / (high - low)
                color, strength = OUR_COLOR if offset >= 0 else OOD_COLOR, min(1, abs(offset))
                axis.barh(row, 0.96, 0.96, column - 0.48, color=color, alpha=0.9 * strength)
                ink = PAPER if strength > 0.55 else INK  # light on dark squares
                text = "-" if value is None else f"{value:.2f}"
                axis.text(column, row, text, ha="center", va="center", color=ink)
        axis.set(xlim=(-0.5, len(figure.columns) - 0.5), ylim=(len(names) - 0.5, -0.5))
        axis.set_xticks(range(len(figure.columns)), figure.columns)
        axis.set_yticks(range(len(names)), names)
        axis.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
        axis.spines[:].set_visible(False)

    alt = _alt(figure.title, ((name, zip(figure.columns, row)) for name, row in figure.rows))
    return Picture(figure.title, alt, (420, 32 + 38 * len(names)), paint)


def _alt(title: str, rows: Iterable[tuple[str, Iterable[tuple[Any, Optional[float]]]]]) -> str:
    """A figure in words: `title. row: column 1.00, other column 2.00; next row: ...`."""
    listed = []
    for name, pairs in rows:
        numbers = [f"{what} {value:.2f}" for what, value in pairs if value is not None]
        listed.append(f"{name}: {', '.join(numbers)}" if numbers else name)
    return f"{title}. {'; '.join(listed)}."


_PICTURES: Any = {Lines: _lines, BarGroups: _bars, Densities: _densities, Matrix: _matrix}


def draw_landscape(path: Path, result: SearchResult, note: Optional[str] = None) -> Path:
    """Write a PNG with one row for each layer: AUROC over steepness, `n_bins` and `full_count`.

    Args:
        path: of the PNG; written atomically.
        result: of the search.
        note: a line below the title, e.g. that the OOD validation data is a surrogate.

    Returns:
        The path.

    Raises:
        NACError: if matplotlib is not installed.
    """
    layers = list(dict.fromkeys(point.layer for point in result.landscape))
    figure = blank((11.5, 1.7 + 2 * len(layers)), dpi=150)
    axes = figure.subplots(len(layers), squeeze=False)[:, 0]
    aurocs = [100 * point.auroc for point in result.landscape]
    scale = {"vmin": min(aurocs), "vmax": max(max(aurocs), min(aurocs) + 1)}
    for axis, layer in zip(axes, layers):
        points = [point for point in result.landscape if point.layer == layer]
        values = _draw_map(axis, points, result)
        image = axis.imshow(values, "cividis", aspect="auto", origin="lower", **scale)
        c, best = result.layers.get(layer), max(point.auroc for point in points)
        used = c and f"{c.n_bins} bins, O* {c.full_count}, {_ALPHA} {c.steepness:g}"
        chosen = f"chosen: {used}, weight {c.weight:g}" if c else "layer left out"
        title = f"{layer}   \u00b7   best: {best:.1%}   \u00b7   {chosen}"
        axis.set_title(title, loc="left", fontsize=9.5, weight="bold")
    figure.colorbar(image, ax=axes, aspect=40, label="AUROC of the layer alone, %")
    text = f"chosen layers together: AUROC {result.best.auroc:.2%}"
    text += "" if note is None else f"   \u00b7   {note}"
    legend = "\u2605 chosen together with the other layers     \u25cb best for this layer alone"
    if result.guard is not None:
        legend += f"     {_CROSS} guard differs from 0.5 by more than {result.guard:.2f}"
    figure.suptitle(f"AUROC of each layer alone\n{text}", x=0.01, ha="left", fontsize=11)
    figure.supxlabel(f"number of bins, steepness {_ALPHA}\n{legend}", fontsize=8.5, color=FAINT)
    with files.replacing(path) as temporary:
        figure.savefig(temporary, format="png", facecolor="white")
    return path


def _draw_map(axis: Any, points: Sequence[Candidate], result: SearchResult) -> np.ndarray:
    """Mark points; AUROC by full count and by bins and steepness, `[rows, columns]`."""
    columns = sorted({(point.config.n_bins, point.config.steepness) for point in points})
    full = sorted({point.config.full_count for point in points})
    limit = np.inf if result.guard is None else result.guard

    def at(config: LayerConfig) -> tuple[int, int]:
        return columns.index((config.n_bins, config.steepness)), full.index(config.full_count)

    values = np.full((len(full), len(columns)), np.nan)
    for point in points:
        x, y = at(point.config)
        values[y, x] = np.fmax(values[y, x], 100 * point.auroc)  # of several states, the best
        if point.guard is not None and abs(point.guard - 0.5) > limit:
            axis.text(x, y, _CROSS, ha="center", va="center", fontsize=8, color="white")
    best = max(points, key=lambda point: point.auroc).config
    marks = (best, "o", "none"), (result.layers.get(points[0].layer), "*", "white")
    for config, marker, fill in marks:
        if config is not None:
            axis.scatter(*at(config), s=150, marker=marker, facecolors=fill, edgecolors=INK)
    axis.set_facecolor(GRID)
    axis.set_xticks(range(len(columns)), [f"{n}\n{a:g}" for n, a in columns], fontsize=6)
    axis.set_yticks(range(len(full)), map(str, full), fontsize=7)
    axis.set_ylabel("full count O*", fontsize=8)
    return values
