"""A picture of a search: the AUROC of each layer over its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional, Sequence

import numpy as np

from nac_openood import files
from nac_openood.core.layer_config import LayerConfig
from nac_openood.report.drawing import blank
from nac_openood.report.formatting import metric
from nac_openood.search.result import LayerPoint, SearchResult

_COLORS = "cividis"  # looks the same with any color vision, and in gray
#: Greek alpha and the multiplication sign, which a linter takes for mistyped letters.
_ALPHA, _CROSS = "\u03b1", "\u00d7"
_INK, _FAINT, _EMPTY = "#222222", "#666666", "#e8e8e8"
#: Height in inches of the title and the legend.
_TOP, _BOTTOM = 1.3, 0.75


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
    by_layer: dict[str, list[LayerPoint]] = {}
    for point in result.landscape:
        by_layer.setdefault(point.layer, []).append(point)
    height = 1.7 + 1.8 * len(by_layer)
    figure = blank((11.5, height), dpi=150)
    scale = _scale(figure, result, height)
    rows = figure.add_gridspec(
        len(by_layer), 1, left=0.075, right=0.9, hspace=0.62, top=1 - _TOP / height,
        bottom=_BOTTOM / height,
    )  # fmt: skip
    for row, (name, points) in zip(rows, by_layer.items()):
        _layer(figure, row, name, points, result, scale)
    _texts(figure, result, note, height)
    with files.replacing(path) as temporary:
        figure.savefig(temporary, format="png", facecolor="white")
    return path


def _scale(figure: Any, result: SearchResult, height: float) -> Any:
    """The color scale that all maps share, with its bar on the right."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    aurocs = [100 * p.auroc for p in result.landscape]
    low, high = min(aurocs), max(aurocs)
    scale = Normalize(low, high if high > low else low + 1)
    axis = figure.add_axes((0.925, _BOTTOM / height, 0.014, 1 - (_TOP + _BOTTOM) / height))
    bar = figure.colorbar(ScalarMappable(scale, _COLORS), cax=axis)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=2, color=_FAINT, labelcolor=_INK)
    bar.set_label("AUROC of the layer alone, %", fontsize=8.5, color=_INK)
    return scale


def _layer(
    figure: Any, row: Any, name: str, points: Sequence[LayerPoint], result: SearchResult, scale: Any
) -> None:
    """One layer: a map for each number of bins, side by side."""
    best, chosen = max(points, key=lambda p: p.auroc), result.layers.get(name)
    bins = sorted({p.config.n_bins for p in points})
    steep = sorted({p.config.steepness for p in points})
    full = sorted({p.config.full_count for p in points})
    axes = [figure.add_subplot(part) for part in row.subgridspec(1, len(bins), wspace=0.06)]
    for axis, n_bins in zip(axes, bins):
        mine = [p for p in points if p.config.n_bins == n_bins]
        _map(axis, steep, full, mine, scale, result.guard)
        for config, look in ((best.config, ("o", 190, "none")), (chosen, ("*", 120, "white"))):
            if config is not None and config.n_bins == n_bins:
                where = steep.index(config.steepness), full.index(config.full_count)
                _mark(axis, where, *look)
        axis.set_title(f"{n_bins} bins", fontsize=8, color=_FAINT, pad=3)
        axis.set_yticklabels([str(f) for f in full] if axis is axes[0] else [])
    axes[0].set_ylabel("full count O*", fontsize=8, color=_INK)
    style = {"xycoords": "axes fraction", "textcoords": "offset points", "color": _INK}
    axes[0].annotate(name, (0, 1), (0, 17), weight="bold", fontsize=10.5, **style)
    axes[-1].annotate(_details(best, chosen), (1, 1), (0, 17), ha="right", fontsize=8.5, **style)


def _map(
    axis: Any,
    steep: Sequence[float],
    full: Sequence[int],
    points: Sequence[LayerPoint],
    scale: Any,
    guard: Optional[float],
) -> None:
    """AUROC over steepness and full count; crosses mark points that the guard rejects."""
    values = np.full((len(full), len(steep)), np.nan)
    for p in points:  # if states are searched too, a cell shows the best of them
        cell = full.index(p.config.full_count), steep.index(p.config.steepness)
        values[cell] = np.nanmax([values[cell], 100 * p.auroc])
        if guard is not None and p.guard is not None and abs(p.guard - 0.5) > guard:
            axis.text(cell[1], cell[0], _CROSS, ha="center", va="center", fontsize=8, color="white")
    axis.set_facecolor(_EMPTY)
    axis.imshow(values, cmap=_COLORS, norm=scale, aspect="auto", origin="lower")
    axis.set_xticks(range(len(steep)), [f"{s:g}" for s in steep])
    axis.set_yticks(range(len(full)))
    axis.set_xticks(np.arange(len(steep) - 1) + 0.5, minor=True)
    axis.set_yticks(np.arange(len(full) - 1) + 0.5, minor=True)
    axis.grid(which="minor", color="white", linewidth=0.6)
    axis.tick_params(which="both", length=0, labelsize=7 if len(steep) < 9 else 6, labelcolor=_INK)
    axis.spines[:].set_visible(False)


def _mark(axis: Any, where: tuple[int, int], marker: str, size: float, fill: str) -> None:
    # a dark rim below a light one is visible on any color
    for color, width in ((_INK, 2.6), ("white" if fill == "none" else _INK, 1.1)):
        axis.scatter(
            *where, s=size, marker=marker, facecolors=fill, edgecolors=color, linewidths=width,
            clip_on=False, zorder=3,
        )  # fmt: skip


def _details(best: LayerPoint, chosen: Optional[LayerConfig]) -> str:
    text = f"best: {100 * best.auroc:.1f} %   \u00b7   chosen: "
    if chosen is None:
        return text + "layer left out"
    return text + (
        f"{chosen.n_bins} bins, O* {chosen.full_count}, {_ALPHA} {chosen.steepness:g}, "
        f"weight {chosen.weight:g}"
    )


def _texts(figure: Any, result: SearchResult, note: Optional[str], height: float) -> None:
    """Title, result, axis label and legend."""
    best, guard = result.best, result.guard
    told = f"chosen layers together: AUROC {best.auroc:.2%}, {metric('FPR@95')} {best.fpr95:.2%}"
    told += f", {metric('FPR@95_IN')} {best.fpr95_in:.2%}"
    told += "" if best.guard is None else f", guard {best.guard:.1%}"
    told += "" if note is None else f"   \u00b7   {note}"
    legend = "\u2605 chosen together with the other layers     \u25cb best for this layer alone"
    if guard is not None:
        legend += f"     {_CROSS} guard differs from 0.5 by more than {guard:.2f}"
    title = {"fontsize": 14, "color": _INK, "weight": "bold"}
    for x, y, text, look in (
        (0.02, height - 0.3, "AUROC of each layer alone", title),
        (0.02, height - 0.58, told, {"fontsize": 9.5, "color": _FAINT}),
        (0.46, 0.42, f"steepness {_ALPHA}", {"fontsize": 8, "color": _INK}),
        (0.02, 0.18, legend, {"fontsize": 8.5, "color": _FAINT, "family": "DejaVu Sans"}),
    ):
        figure.text(x, y / height, text, va="center", **look)
