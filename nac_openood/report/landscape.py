"""A picture of a search: the AUROC of each layer over its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import numpy as np

from nac_openood import files
from nac_openood.report.drawing import FAINT, GRID, INK, blank
from nac_openood.report.formatting import metric
from nac_openood.search.run import Candidate, SearchResult

#: Greek alpha and the multiplication sign, which a linter takes for mistyped letters.
_ALPHA, _CROSS = "\u03b1", "\u00d7"


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
    bins = sorted({point.config.n_bins for point in result.landscape})
    height = 1.7 + 1.8 * len(layers)
    figure = blank((11.5, height), dpi=150)
    axes = figure.subplots(
        len(layers), len(bins), squeeze=False, sharey="row",
        gridspec_kw={"left": 0.075, "right": 0.9, "top": 1 - 1.3 / height, "wspace": 0.06,
                     "bottom": 0.75 / height, "hspace": 0.62},
    )  # fmt: skip
    aurocs = [100 * point.auroc for point in result.landscape]
    scale = {"vmin": min(aurocs), "vmax": max(max(aurocs), min(aurocs) + 1)}
    for row, layer in zip(axes, layers):
        points = [point for point in result.landscape if point.layer == layer]
        for axis, n_bins in zip(row, bins):
            image = _draw_map(axis, points, n_bins, result, scale)
        row[0].set_ylabel("full count O*", fontsize=8)
        above = {"xycoords": "axes fraction", "textcoords": "offset points"}
        row[0].annotate(layer, (0, 1), (0, 17), weight="bold", fontsize=10.5, **above)
        details = _details(points, result)
        row[-1].annotate(details, (1, 1), (0, 17), ha="right", fontsize=8.5, **above)
    bar = figure.add_axes((0.925, 0.75 / height, 0.014, 1 - 2.05 / height))
    figure.colorbar(image, cax=bar).set_label("AUROC of the layer alone, %", fontsize=8.5)
    best = result.best
    text = (
        f"chosen layers together: AUROC {best.auroc:.2%}, {metric('FPR@95')} {best.fpr95:.2%}, "
        f"{metric('FPR@95_IN')} {best.fpr95_in:.2%}"
    )
    text += "" if best.guard is None else f", guard {best.guard:.1%}"
    text += "" if note is None else f"   \u00b7   {note}"
    legend = "\u2605 chosen together with the other layers     \u25cb best for this layer alone"
    if result.guard is not None:
        legend += f"     {_CROSS} guard differs from 0.5 by more than {result.guard:.2f}"
    title = "AUROC of each layer alone"
    figure.text(0.02, 1 - 0.35 / height, title, fontsize=14, color=INK, weight="bold")
    figure.text(0.02, 1 - 0.63 / height, text, fontsize=9.5, color=FAINT)
    figure.text(0.46, 0.38 / height, f"steepness {_ALPHA}", fontsize=8, color=INK)
    figure.text(0.02, 0.13 / height, legend, fontsize=8.5, color=FAINT)
    with files.replacing(path) as temporary:
        figure.savefig(temporary, format="png", facecolor="white")
    return path


def _draw_map(
    axis: Any, points: list[Candidate], n_bins: int, result: SearchResult, scale: Any
) -> Any:
    """AUROC over steepness and full count; crosses mark points that the guard rejects."""
    steep = sorted({point.config.steepness for point in points})
    full = sorted({point.config.full_count for point in points})
    values = np.full((len(full), len(steep)), np.nan)
    best = max(points, key=lambda point: point.auroc).config
    marks = [(best, "o", "none"), (result.layers.get(points[0].layer), "*", "white")]
    for point in points:
        if point.config.n_bins == n_bins:  # of several states, a cell shows the best one
            cell = full.index(point.config.full_count), steep.index(point.config.steepness)
            values[cell] = np.nanmax([values[cell], 100 * point.auroc])
            guard = None if point.guard is None else abs(point.guard - 0.5)
            if result.guard is not None and guard is not None and guard > result.guard:
                axis.text(*cell[::-1], _CROSS, ha="center", va="center", fontsize=8, color="white")
    for config, marker, fill in marks:
        if config is not None and config.n_bins == n_bins:
            at = steep.index(config.steepness), full.index(config.full_count)
            axis.scatter(*at, s=150, marker=marker, facecolors=fill, edgecolors=INK, zorder=3)
    axis.set_facecolor(GRID)
    axis.set_xticks(range(len(steep)), [f"{s:g}" for s in steep], fontsize=6)
    axis.set_yticks(range(len(full)), [str(f) for f in full], fontsize=7)
    axis.set_title(f"{n_bins} bins", fontsize=8, color=FAINT, pad=3)
    return axis.imshow(values, cmap="cividis", aspect="auto", origin="lower", **scale)


def _details(points: list[Candidate], result: SearchResult) -> str:
    chosen = result.layers.get(points[0].layer)
    text = f"best: {100 * max(point.auroc for point in points):.1f} %   \u00b7   chosen: "
    if chosen is None:
        return text + "layer left out"
    return text + (
        f"{chosen.n_bins} bins, O* {chosen.full_count}, {_ALPHA} {chosen.steepness:g}, "
        f"weight {chosen.weight:g}"
    )
