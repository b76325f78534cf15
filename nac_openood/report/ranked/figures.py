"""Plots of a ranking: over training steps, and over the volume of test data."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import numpy as np

from nac_openood.evaluation.leave_one_out import RankedRun, RankedRuns
from nac_openood.evaluation.ranking import CRITERIA
from nac_openood.report.blocks import Picture
from nac_openood.report.figures.canvas import DASHES, ID_COLOR, OOD_COLOR, OUR_COLOR

_STEPS_SIZE, _VOLUME_SIZE = (330, 250), (440, 300)
_LOOKS: Mapping[str, Mapping[str, Any]] = {
    "validation": {"color": ID_COLOR, "ls": DASHES[1], "marker": "s"},
    "nac-me": {"color": OUR_COLOR, "ls": DASHES[0], "marker": "D"},
    "test": {"color": OOD_COLOR, "ls": DASHES[2], "marker": "o"},
}


def steps_picture(run: RankedRun) -> Picture:
    """G on the left axis, validation and test accuracy on the right one, over training steps."""
    checkpoints = run.ranking.checkpoints
    steps = [each.step for each in checkpoints]
    numbered = all(step is not None for step in steps)
    at = np.array(steps if numbered else range(1, len(steps) + 1), dtype=float)
    curves = {"validation": [100 * each.val for each in checkpoints]}
    if run.ranking.has_test:
        curves["test"] = [100 * (each.test or 0.0) for each in checkpoints]
    coverage = [each.coverage for each in checkpoints]
    power = _power(coverage)

    def paint(figure: Any) -> None:
        axis = figure.add_axes((0.17, 0.17, 0.68, 0.66))
        right = axis.twinx()
        shown = np.array(coverage) / 10.0**power
        axis.plot(at, shown, label="G", ms=4, lw=2, **_LOOKS["nac-me"])
        for name, values in curves.items():
            right.plot(at, values, label=f"{name} accuracy", ms=3.5, lw=1.5, **_LOOKS[name])
        best = int(np.argmax(coverage))
        axis.axvline(at[best], color=OUR_COLOR, lw=0.8, ls=":")
        axis.set_xlabel("training step" if numbered else "checkpoint")
        unit = f", 1e{power}" if power else ""
        axis.set_ylabel(f"coverage G{unit}", color=OUR_COLOR)
        right.set_ylabel("accuracy, %")
        right.spines["right"].set_visible(True)
        axis.locator_params(axis="x", nbins=5)
        handles = [line for each in (axis, right) for line in each.get_lines()
                   if not line.get_label().startswith("_")]  # fmt: skip
        axis.legend(handles=handles, loc="lower left", bbox_to_anchor=(-0.2, 1.0), ncols=3,
                    fontsize=8, columnspacing=1.0, handlelength=2.2)  # fmt: skip

    chosen = run.ranking.chosen()
    told = [f"G rises from {min(coverage):.3g} to {max(coverage):.3g}",
            *(f"{n} accuracy from {v[0]:.1f} % to {v[-1]:.1f} %" for n, v in curves.items()),
            f"NAC-ME chooses {chosen.name}"]  # fmt: skip
    alt = f"Coverage and accuracy of {len(checkpoints)} checkpoints: {', '.join(told)}."
    return Picture(run.name if run.target else "Over training", alt, _STEPS_SIZE, paint)


def _power(values: Sequence[float]) -> int:
    """The power of ten by which to divide, so that two decimals are enough for ticks."""
    largest = max(values)
    return int(np.floor(np.log10(largest))) if largest > 0 else 0


_CurvePoint = tuple[float, float, Optional[float]]


def volume_curves(runs: Sequence[RankedRun]) -> dict[str, list[_CurvePoint]]:
    """(share, mean RC times 100, standard deviation over runs) by criterion."""
    found: dict[str, list[_CurvePoint]] = {}
    for criterion in ("validation", "nac-me"):
        by_share: dict[float, list[float]] = {}
        for run in runs:
            for point in run.ranking.volume:
                if point.criterion == criterion and point.mean is not None:
                    by_share.setdefault(point.share, []).append(100 * point.mean)
        found[criterion] = [
            (share, float(np.mean(values)), float(np.std(values)) if len(values) > 1 else None)
            for share, values in sorted(by_share.items())
        ]
    return {criterion: points for criterion, points in found.items() if points}


def volume_picture(ranked: RankedRuns) -> Optional[Picture]:
    """RC over the share of test data that it is measured with; means over runs."""
    curves = volume_curves(ranked.runs)
    if not curves:
        return None

    def paint(figure: Any) -> None:
        from matplotlib.ticker import FuncFormatter, NullFormatter

        axis = figure.add_axes((0.13, 0.16, 0.84, 0.8))
        for criterion, points in curves.items():
            x = [100 * share for share, _, _ in points]
            y = [mean for _, mean, _ in points]
            axis.plot(x, y, label=CRITERIA[criterion], ms=4.5, lw=1.8, **_LOOKS[criterion])
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel("share of the test data, % (log scale)")
        axis.set_ylabel("RC with test accuracy")
        axis.grid()
        axis.legend(loc="best")

    listed = "; ".join(
        f"{CRITERIA[c]}: " + ", ".join(f"{100 * s:g} % {mean:.1f}" for s, mean, _ in points)
        for c, points in curves.items()
    )
    title = "RC against the volume of test data"
    return Picture(title, f"{title}. {listed}.", _VOLUME_SIZE, paint)
