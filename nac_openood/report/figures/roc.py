"""OOD images found over ID images called OOD, for every threshold there is."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np

from nac_openood.report.figures.canvas import DASHES, FAINT, GRID, NAC_COLOR, OTHERS, svg
from nac_openood.report.figures.sample import Sample, finite
from nac_openood.report.markup import Html
from nac_openood.report.order import NAC, Standing
from nac_openood.report.words import set_title

_POINTS = 200  # of a curve at most: the eye sees no more on a small picture
_SIZE = (300, 290)


def draw_roc(
    key: str,
    shown: Sequence[tuple[Standing, Sample]],
    dataset: str,
    aurocs: Mapping[str, float],
) -> Html:
    """ROC curves of an OOD set; OOD is the positive class, as in OpenOOD.

    Args:
        key: unique on the page.
        shown: methods and their scores; a method keeps its color over all sets.
        dataset: the OOD set.
        aurocs: method -> percent on this run and set, for the legend.
    """

    def draw(figure: Any) -> None:
        axis = figure.add_axes((0.145, 0.15, 0.825, 0.83))
        axis.plot([0, 100], [0, 100], color=GRID, lw=1)
        axis.axhline(95, color=FAINT, lw=0.7, ls=(0, (2, 3)))
        handles = _curves(axis, shown, dataset, aurocs)
        axis.set(xlim=(0, 100), ylim=(0, 100.5))
        axis.set_xlabel("ID images called OOD, %")
        axis.set_ylabel("OOD images found, %", labelpad=2)
        axis.legend(
            handles=handles, loc="lower right", handlelength=2.6, title="AUROC, %",
            title_fontsize=9, alignment="left",
        )  # fmt: skip

    here = [s for s, sample in shown if dataset in sample.outside]
    return svg(key, _alt(here, dataset, aurocs), _SIZE, draw)


def roc_points(inside: np.ndarray, outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ID called OOD and OOD found, in percent, for growing thresholds; thinned evenly.

    A sample is called OOD when its score is at most the threshold.
    """
    levels = np.unique(np.concatenate([inside, outside]))
    false = np.searchsorted(np.sort(inside), levels, side="right") / len(inside)
    true = np.searchsorted(np.sort(outside), levels, side="right") / len(outside)
    false, true = np.r_[0, false] * 100, np.r_[0, true] * 100
    if len(false) > _POINTS:
        # even steps along the curve, where steep pieces count as much as flat ones
        way = np.linspace(0, false[-1] + true[-1], _POINTS)
        keep = np.unique(np.searchsorted(false + true, way).clip(0, len(false) - 1))
        false, true = false[keep], true[keep]
    return false, true


def _curves(
    axis: Any,
    shown: Sequence[tuple[Standing, Sample]],
    dataset: str,
    aurocs: Mapping[str, float],
) -> list[Any]:
    handles, other = [], 0
    for standing, sample in shown:
        is_nac = standing.method == NAC
        place = other % len(OTHERS)
        look = {"color": OTHERS[place], "ls": DASHES[1 + place % (len(DASHES) - 1)], "lw": 1.5}
        if is_nac:
            look = {"color": NAC_COLOR, "ls": DASHES[0], "lw": 2.2, "zorder": 4}
        else:
            other += 1
        if dataset in sample.outside:
            auroc = aurocs.get(standing.method)
            label = standing.title if auroc is None else f"{auroc:.1f}  {standing.title}"
            points = roc_points(sample.id_scores(), finite(sample.outside[dataset]))
            handles += axis.plot(*points, label=label, solid_joinstyle="round", **look)
    return handles


def _alt(shown: Sequence[Standing], dataset: str, aurocs: Mapping[str, float]) -> str:
    known = [(s.title, aurocs.get(s.method)) for s in shown]
    listed = ", ".join(t if a is None else f"{t} {a:.1f} %" for t, a in known)
    return f"ROC curves of ID test images against {set_title(dataset)}; AUROC: {listed}."
