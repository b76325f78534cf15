"""How the scores of ID and OOD images lie: the less they overlap, the better."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import numpy as np

from nac_openood.report.figures.canvas import FAINT, ID_COLOR, NAC_COLOR, OOD_COLOR, svg
from nac_openood.report.figures.sample import Sample, finite
from nac_openood.report.markup import Html
from nac_openood.report.order import NAC, Standing
from nac_openood.report.words import set_title

_BINS, _WIDTH, _ROW = 44, 300, 88
Shown = Sequence[tuple[Standing, Sample]]


def draw_distributions(key: str, shown: Shown, dataset: str, aurocs: Mapping[str, float]) -> Html:
    """A row for each method: ID filled, OOD as a line, both with area one.

    Args:
        key: unique on the page.
        shown: methods and their scores.
        dataset: the OOD set.
        aurocs: method -> percent on this run and set, to be written beside it.
    """
    rows = [(s, sample) for s, sample in shown if dataset in sample.outside]
    height = 26 + _ROW * len(rows)

    def draw(figure: Any) -> None:
        for i, (standing, sample) in enumerate(rows):
            bottom = 1 - (_ROW * (i + 1) - 4) / height
            axis = figure.add_axes((0.03, bottom, 0.94, (_ROW - 32) / height))
            _densities(axis, sample, dataset)
            _name(axis, standing, aurocs.get(standing.method))
        figure.text(
            0.97, 5 / height, "score (higher = more in-distribution) \u2192", ha="right",
            fontsize=8.5, color=FAINT,
        )  # fmt: skip

    return svg(key, _alt(rows, dataset, aurocs), (_WIDTH, height), draw)


def _densities(axis: Any, sample: Sample, dataset: str) -> None:
    inside, outside = finite(sample.inside), finite(sample.outside[dataset])
    edges = _edges(np.concatenate([inside, outside]))
    draw_density(axis, inside, edges, color=ID_COLOR, fill=True)
    for scored in sample.shifted.values():
        draw_density(axis, finite(scored), edges, color=ID_COLOR, ls=":", lw=1.2)
    draw_density(axis, outside, edges, color=OOD_COLOR, ls="--", lw=1.6)
    axis.set_xlim(edges[0], edges[-1])
    axis.set_ylim(bottom=0)
    axis.set_yticks([])
    axis.locator_params(axis="x", nbins=5)
    axis.spines["left"].set_visible(False)


def draw_density(
    axis: Any, scores: np.ndarray, edges: np.ndarray, *, fill: bool = False, **look: Any
) -> None:
    """A histogram of area one; scores beyond the edges count in the outermost bins."""
    if not scores.size:
        return
    counts = np.histogram(scores.clip(edges[0], edges[-1]), edges)[0]
    heights = counts / counts.sum()
    if fill:
        axis.stairs(heights, edges, fill=True, alpha=0.35, lw=0, **look)
        look = {**look, "lw": 1.2}
    axis.stairs(heights, edges, **look)


def _edges(scores: np.ndarray) -> np.ndarray:
    """Bins over the middle 99 percent: a few far scores must not flatten the rest."""
    low, high = np.quantile(scores, [0.005, 0.995])
    # numbers too close together for that many bins are one number
    if not high - low > 1e-9 * max(abs(low), abs(high)):
        half = max(0.5, abs(low) * 1e-3)
        low, high = low - half, high + half
    bins = int(np.clip(1.2 * len(scores) ** 0.5, 12, _BINS))  # few images, wide bins
    return np.linspace(low, high, bins + 1)


def _name(axis: Any, standing: Standing, auroc: Optional[float]) -> None:
    is_nac = standing.method == NAC
    look = {"weight": "bold", "color": NAC_COLOR} if is_nac else {}
    axis.set_title(standing.title, fontsize=9.5, pad=5, **look)
    if auroc is not None:
        axis.set_title(f"AUROC {auroc:.1f} %", loc="right", fontsize=9.5, pad=5)


def _alt(rows: Shown, dataset: str, aurocs: Mapping[str, float]) -> str:
    parts = []
    for standing, sample in rows:
        inside, outside = finite(sample.inside), finite(sample.outside[dataset])
        text = (
            f"{standing.title}: median score ID {np.median(inside):.3g}, "
            f"OOD {np.median(outside):.3g}"
        )
        auroc = aurocs.get(standing.method)
        parts.append(text if auroc is None else f"{text}, AUROC {auroc:.1f} %")
    return f"Scores of ID test images against {set_title(dataset)}. {'; '.join(parts)}."
