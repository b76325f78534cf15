"""Histograms of ID and OOD scores: the less they overlap, the better."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from nac_openood.report.blocks import Picture
from nac_openood.report.figures.canvas import FAINT, ID_COLOR, OOD_COLOR, OUR_COLOR
from nac_openood.report.figures.sample import RunScores, Shown, finite
from nac_openood.report.order import Standing
from nac_openood.report.words import set_title
from nac_openood.tables import Density, shares

_BINS, _WIDTH, _ROW = 44, 300, 88


def distribution_picture(shown: Shown, dataset: str) -> Picture:
    """For an OOD dataset, a row for each method: ID filled, OOD as a line, of the same area."""
    rows = [(s, sample) for s, sample in shown if dataset in sample.outside]
    height = 26 + _ROW * len(rows)

    def paint(figure: Any) -> None:
        for i, (standing, sample) in enumerate(rows):
            bottom = 1 - (_ROW * (i + 1) - 4) / height
            axis = figure.add_axes((0.03, bottom, 0.94, (_ROW - 32) / height))
            _densities(axis, sample, dataset)
            _name(axis, standing, sample.aurocs.get(dataset))
        figure.text(
            0.97, 5 / height, "score (higher = more in-distribution) \u2192", ha="right",
            fontsize=8.5, color=FAINT,
        )  # fmt: skip

    parts = []
    for standing, sample in rows:
        inside, outside = finite(sample.inside), finite(sample.outside[dataset])
        medians = f"ID {np.median(inside):.3g}, OOD {np.median(outside):.3g}"
        auroc = sample.aurocs.get(dataset)
        told = "" if auroc is None else f", AUROC {auroc:.1f} %"
        parts.append(f"{standing.title}: median score {medians}{told}")
    title = set_title(dataset)
    alt = f"Scores of ID test samples and {title}. {'; '.join(parts)}."
    return Picture(title, alt, (_WIDTH, height), paint)


def draw_density(axis: Any, panel: Density, ticks: int) -> tuple[Any, Any]:
    """ID samples filled, OOD samples as a dashed line; returns both for a legend."""
    inside = axis.stairs(panel.inside, panel.edges, color=ID_COLOR, fill=True, alpha=0.35, lw=0)
    axis.stairs(panel.inside, panel.edges, color=ID_COLOR, lw=1.2)
    outside = axis.stairs(panel.outside, panel.edges, color=OOD_COLOR, ls="--", lw=1.6)
    axis.set_xlim(panel.edges[0], panel.edges[-1])
    axis.set_ylim(bottom=0)
    axis.set_yticks([])
    axis.locator_params(axis="x", nbins=ticks)
    axis.spines["left"].set_visible(False)
    return inside, outside


def _densities(axis: Any, sample: RunScores, dataset: str) -> None:
    inside, outside = finite(sample.inside), finite(sample.outside[dataset])
    n_samples = len(inside) + len(outside)
    bins = int(np.clip(1.2 * n_samples**0.5, 12, _BINS))  # fewer samples, wider bins
    panel = Density.of(inside, outside, bins=bins)
    for scored in sample.shifted.values():
        shifted = shares(finite(scored), panel.edges)
        axis.stairs(shifted, panel.edges, color=ID_COLOR, ls=":", lw=1.2)
    draw_density(axis, panel, ticks=5)


def _name(axis: Any, standing: Standing, auroc: Optional[float]) -> None:
    look = {"weight": "bold", "color": OUR_COLOR} if standing.ours else {}
    axis.set_title(standing.title, fontsize=9.5, pad=5, **look)
    if auroc is not None:
        axis.set_title(f"AUROC {auroc:.1f} %", loc="right", fontsize=9.5, pad=5)
