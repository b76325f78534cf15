"""A picture of a search: how well each layer does by itself, over its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

import numpy as np

from nac_openood.config import LayerConfig
from nac_openood.core import files
from nac_openood.report.figures.canvas import blank
from nac_openood.search.result import LayerPoint, SearchResult

_COLORS = "cividis"  # reads the same with any kind of color vision, and in gray
#: Greek alpha and the multiplication sign, which a linter takes for mistyped letters.
_ALPHA, _CROSS = "\u03b1", "\u00d7"
_INK, _FAINT, _EMPTY = "#222222", "#666666", "#e8e8e8"


def draw_landscape(path: Path, result: SearchResult, note: Optional[str] = None) -> None:
    """Write a PNG with one panel a layer: AUROC over steepness, `n_bins` and `full_count`.

    Args:
        path: of the PNG; written atomically.
        result: of the search.
        note: a line below the title, e.g. that the OOD validation data is a surrogate.

    Raises:
        NACError: where matplotlib is not installed.
    """
    by_layer: dict[str, list[LayerPoint]] = {}
    for point in result.landscape:
        by_layer.setdefault(point.layer, []).append(point)
    height = 1.7 + 1.8 * len(by_layer)
    figure = blank((11.5, height), dpi=150)
    _panels(figure, by_layer, result, height)
    _title(figure, result, note, height)
    with files.replacing(path) as temporary:
        figure.savefig(temporary, format="png", facecolor="white")


def _panels(
    figure: Any, by_layer: Mapping[str, Sequence[LayerPoint]], result: SearchResult, height: float
) -> None:
    """A row of heat maps for each layer, one map for each number of bins, one scale for all."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    aurocs = [100 * p.auroc for p in result.landscape]
    low, high = min(aurocs), max(aurocs)
    scale = Normalize(low, high if high > low else low + 1)
    rows = figure.add_gridspec(
        len(by_layer), 1, left=0.075, right=0.9, hspace=0.62,
        top=1 - 1.3 / height, bottom=0.75 / height,
    )  # fmt: skip
    for row, (name, points) in zip(rows, by_layer.items()):
        last = name == list(by_layer)[-1]
        _panel(figure, row, name, points, result.layers.get(name), scale, result.guard, last)
    axis = figure.add_axes((0.925, 0.75 / height, 0.014, 1 - 2.05 / height))
    bar = figure.colorbar(ScalarMappable(scale, _COLORS), cax=axis)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=2, color=_FAINT, labelcolor=_INK)
    bar.set_label("AUROC of the layer by itself, %", fontsize=8.5, color=_INK)


def _panel(
    figure: Any,
    row: Any,
    name: str,
    points: Sequence[LayerPoint],
    chosen: Optional[LayerConfig],
    scale: Any,
    guard: Optional[float],
    last: bool,
) -> None:
    """One layer: maps side by side, a number of bins each."""
    best = max(points, key=lambda p: p.auroc)
    bins = sorted({p.config.n_bins for p in points})
    maps = row.subgridspec(1, len(bins), wspace=0.06)
    for column, n_bins in enumerate(bins):
        axis = figure.add_subplot(maps[0, column])
        mine = [p for p in points if p.config.n_bins == n_bins]
        _map(axis, points, mine, scale, guard)
        _mark(axis, points, best.config, n_bins, marker="o", size=190, fill="none")
        if chosen is not None:
            _mark(axis, points, chosen, n_bins, marker="*", size=120, fill="white")
        axis.set_title(f"{n_bins} bins", fontsize=8, color=_FAINT, pad=3)
        if column:
            axis.set_yticklabels([])
        else:
            axis.set_ylabel("full count O*", fontsize=8, color=_INK)
            _heading(axis, name, 0, weight="bold", fontsize=10.5)
        if column == len(bins) - 1:
            _heading(axis, _details(best, chosen), 1, ha="right", fontsize=8.5)
        if last and column == len(bins) // 2:
            axis.set_xlabel(f"steepness {_ALPHA}", fontsize=8, color=_INK)


def _map(
    axis: Any,
    points: Sequence[LayerPoint],
    mine: Sequence[LayerPoint],
    scale: Any,
    guard: Optional[float],
) -> None:
    steep, full = _axes(points)
    values = np.full((len(full), len(steep)), np.nan)
    for p in mine:  # where states are searched too, a cell shows the best of them
        cell = full.index(p.config.full_count), steep.index(p.config.steepness)
        values[cell] = np.nanmax([values[cell], 100 * p.auroc])
        if guard is not None and p.guard is not None and abs(p.guard - 0.5) > guard:
            axis.text(cell[1], cell[0], _CROSS, ha="center", va="center", fontsize=8, color="white")
    axis.set_facecolor(_EMPTY)
    axis.imshow(values, cmap=_COLORS, norm=scale, aspect="auto", origin="lower")
    axis.set_xticks(range(len(steep)), [f"{s:g}" for s in steep])
    axis.set_yticks(range(len(full)), [str(f) for f in full])
    axis.set_xticks(np.arange(len(steep) - 1) + 0.5, minor=True)
    axis.set_yticks(np.arange(len(full) - 1) + 0.5, minor=True)
    axis.grid(which="minor", color="white", linewidth=0.6)
    axis.tick_params(which="both", length=0, labelsize=7 if len(steep) < 9 else 6, labelcolor=_INK)
    for spine in axis.spines.values():
        spine.set_visible(False)


def _mark(
    axis: Any,
    points: Sequence[LayerPoint],
    config: LayerConfig,
    n_bins: int,
    *,
    marker: str,
    size: float,
    fill: str,
) -> None:
    if config.n_bins != n_bins:
        return
    steep, full = _axes(points)
    where = [steep.index(config.steepness)], [full.index(config.full_count)]
    # a dark rim below a white one is seen on any color
    edge = "white" if fill == "none" else _INK
    for color, width in ((_INK, 2.6), (edge, 1.1)):
        axis.scatter(
            *where, s=size, marker=marker, facecolors=fill, edgecolors=color, linewidths=width,
            clip_on=False, zorder=3,
        )  # fmt: skip


def _axes(points: Sequence[LayerPoint]) -> tuple[list[float], list[int]]:
    steep = sorted({p.config.steepness for p in points})
    return steep, sorted({p.config.full_count for p in points})


def _heading(axis: Any, text: str, x: float, **style: Any) -> None:
    axis.annotate(
        text, (x, 1), (0, 17), xycoords="axes fraction", textcoords="offset points",
        color=_INK, annotation_clip=False, **style,
    )  # fmt: skip


def _details(best: LayerPoint, chosen: Optional[LayerConfig]) -> str:
    text = f"at best {100 * best.auroc:.1f} %   ·   chosen: "
    if chosen is None:
        return text + "left out"
    return text + (
        f"{chosen.n_bins} bins, O* {chosen.full_count}, {_ALPHA} {chosen.steepness:g}, "
        f"weight {chosen.weight:g}"
    )


def _title(figure: Any, result: SearchResult, note: Optional[str], height: float) -> None:
    best = result.best
    figure.text(
        0.02, 1 - 0.3 / height, "What each layer can do by itself", fontsize=14, color=_INK,
        weight="bold", va="center",
    )  # fmt: skip
    told = f"together as chosen: AUROC {best.auroc:.2%}, FPR@95 {best.fpr95:.2%}"
    told += "" if best.guard is None else f", guard {best.guard:.1%}"
    told += "" if note is None else f"   ·   {note}"
    figure.text(0.02, 1 - 0.58 / height, told, fontsize=9.5, color=_FAINT, va="center")
    legend = "★ chosen together with the other layers     ○ best by itself"
    if result.guard is not None:
        legend += f"     {_CROSS} further than {result.guard:.2f} from 0.5 on the guard"
    figure.text(
        0.02, 0.18 / height, legend, fontsize=8.5, color=_FAINT, va="center",
        family="DejaVu Sans",
    )  # fmt: skip
