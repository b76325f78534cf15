"""Histograms of ID and OOD scores: the less they overlap, the better."""

from __future__ import annotations

from typing import Any, Mapping, Optional

import numpy as np

from nac_openood.report.blocks import Picture
from nac_openood.report.figures.canvas import FAINT, ID_COLOR, OOD_COLOR, OUR_COLOR
from nac_openood.report.figures.sample import RunScores, Shown, finite
from nac_openood.report.order import Standing
from nac_openood.report.words import set_title

_BINS, _WIDTH, _ROW = 44, 300, 88


def distribution_picture(shown: Shown, dataset: str, aurocs: Mapping[str, float]) -> Picture:
    """A row for each method: ID filled, OOD as a line, scaled to the same area.

    Args:
        shown: methods and their scores.
        dataset: the OOD dataset.
        aurocs: method -> percent on this run and dataset, written beside the name.
    """
    rows = [(s, sample) for s, sample in shown if dataset in sample.outside]
    height = 26 + _ROW * len(rows)

    def paint(figure: Any) -> None:
        for i, (standing, sample) in enumerate(rows):
            bottom = 1 - (_ROW * (i + 1) - 4) / height
            axis = figure.add_axes((0.03, bottom, 0.94, (_ROW - 32) / height))
            _densities(axis, sample, dataset)
            _name(axis, standing, aurocs.get(standing.method))
        figure.text(
            0.97, 5 / height, "score (higher = more in-distribution) \u2192", ha="right",
            fontsize=8.5, color=FAINT,
        )  # fmt: skip

    parts = []
    for standing, sample in rows:
        inside, outside = finite(sample.inside), finite(sample.outside[dataset])
        medians = f"ID {np.median(inside):.3g}, OOD {np.median(outside):.3g}"
        auroc = aurocs.get(standing.method)
        told = "" if auroc is None else f", AUROC {auroc:.1f} %"
        parts.append(f"{standing.title}: median score {medians}{told}")
    title = set_title(dataset)
    alt = f"Scores of ID test samples and {title}. {'; '.join(parts)}."
    return Picture(title, alt, (_WIDTH, height), paint)


def _densities(axis: Any, sample: RunScores, dataset: str) -> None:
    inside, outside = finite(sample.inside), finite(sample.outside[dataset])
    edges = _edges(np.concatenate([inside, outside]))
    filled = {"color": ID_COLOR, "fill": True, "alpha": 0.35, "lw": 0}
    _density(axis, inside, edges, **filled)
    _density(axis, inside, edges, color=ID_COLOR, lw=1.2)
    for scored in sample.shifted.values():
        _density(axis, finite(scored), edges, color=ID_COLOR, ls=":", lw=1.2)
    _density(axis, outside, edges, color=OOD_COLOR, ls="--", lw=1.6)
    axis.set_xlim(edges[0], edges[-1])
    axis.set_ylim(bottom=0)
    axis.set_yticks([])
    axis.locator_params(axis="x", nbins=5)
    axis.spines["left"].set_visible(False)


def _density(axis: Any, scores: np.ndarray, edges: np.ndarray, **look: Any) -> None:
    """A histogram whose bins sum to 1; scores beyond the edges count in the outermost bins."""
    if scores.size:
        counts = np.histogram(scores.clip(edges[0], edges[-1]), edges)[0]
        axis.stairs(counts / counts.sum(), edges, **look)


def _edges(scores: np.ndarray) -> np.ndarray:
    """Bins over the middle 99 percent, so that a few outliers do not flatten the rest."""
    low, high = np.quantile(scores, [0.005, 0.995])
    # scores too close together for that many bins count as equal
    if not high - low > 1e-9 * max(abs(low), abs(high)):
        half = max(0.5, abs(low) * 1e-3)
        low, high = low - half, high + half
    bins = int(np.clip(1.2 * len(scores) ** 0.5, 12, _BINS))  # fewer samples, wider bins
    return np.linspace(low, high, bins + 1)


def _name(axis: Any, standing: Standing, auroc: Optional[float]) -> None:
    look = {"weight": "bold", "color": OUR_COLOR} if standing.ours else {}
    axis.set_title(standing.title, fontsize=9.5, pad=5, **look)
    if auroc is not None:
        axis.set_title(f"AUROC {auroc:.1f} %", loc="right", fontsize=9.5, pad=5)
