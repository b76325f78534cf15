"""ROC curves: OOD samples found against ID samples rejected, for every threshold."""

from __future__ import annotations

from typing import Any

import numpy as np

from nac_openood.report.blocks import Picture
from nac_openood.report.figures.canvas import DASHES, FAINT, GRID, OTHERS, OUR_COLOR
from nac_openood.report.figures.sample import Shown, finite
from nac_openood.report.words import set_title

_POINTS = 200  # of a curve at most; more would not be visible
_SIZE = (300, 290)


def roc_picture(shown: Shown, dataset: str) -> Picture:
    """ROC curves for one OOD dataset; OOD is the positive class, as in OpenOOD.

    A method keeps its color over all datasets.
    """

    def paint(figure: Any) -> None:
        axis = figure.add_axes((0.145, 0.15, 0.825, 0.83))
        axis.plot([0, 100], [0, 100], color=GRID, lw=1)
        for line, at in ((axis.axhline, 95), (axis.axvline, 5)):
            line(at, color=FAINT, lw=0.7, ls=(0, (2, 3)))
        _curves(axis, shown, dataset)
        axis.set(xlim=(0, 100), ylim=(0, 100.5))
        axis.set_xlabel("ID samples rejected, %")
        axis.set_ylabel("OOD samples found, %", labelpad=2)
        axis.legend(
            loc="lower right", handlelength=2.6, title="AUROC, %", title_fontsize=9,
            alignment="left",
        )  # fmt: skip

    here = [(s, sample) for s, sample in shown if dataset in sample.outside]
    known = [(s.title, sample.aurocs.get(dataset)) for s, sample in here]
    listed = ", ".join(t if a is None else f"{t} {a:.1f} %" for t, a in known)
    title = set_title(dataset)
    alt = f"ROC curves of ID test samples and {title}; AUROC: {listed}."
    return Picture(title, alt, _SIZE, paint)


def roc_points(inside: np.ndarray, outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ID rejected and OOD found, in percent, for growing thresholds; thinned evenly.

    A sample is called OOD if its score is at most the threshold.
    """
    levels = np.unique(np.concatenate([inside, outside]))
    false = np.searchsorted(np.sort(inside), levels, side="right") / len(inside)
    true = np.searchsorted(np.sort(outside), levels, side="right") / len(outside)
    false, true = np.r_[0, false] * 100, np.r_[0, true] * 100
    if len(false) > _POINTS:
        # even steps along the curve, so that steep parts keep as many points as flat ones
        way = np.linspace(0, false[-1] + true[-1], _POINTS)
        keep = np.unique(np.searchsorted(false + true, way).clip(0, len(false) - 1))
        false, true = false[keep], true[keep]
    return false, true


def _curves(axis: Any, shown: Shown, dataset: str) -> None:
    count = {True: 0, False: 0}  # ours are solid blue first, the others have colors of their own
    for standing, sample in shown:
        index = count[standing.ours]
        count[standing.ours] += 1
        dash = DASHES[index % len(DASHES)]
        look = {"color": OUR_COLOR, "ls": dash, "lw": 2.2, "zorder": 4}
        if not standing.ours:
            index %= len(OTHERS)
            look = {
                "color": OTHERS[index],
                "ls": DASHES[1 + index % (len(DASHES) - 1)],
                "lw": 1.5,
            }
        if dataset in sample.outside:
            auroc = sample.aurocs.get(dataset)
            label = standing.title if auroc is None else f"{auroc:.1f}  {standing.title}"
            points = roc_points(sample.id_scores(), finite(sample.outside[dataset]))
            axis.plot(*points, label=label, solid_joinstyle="round", **look)
