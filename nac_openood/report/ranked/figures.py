"""Plots of a ranking: over training steps, and over the volume of test data."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import numpy as np

from nac_openood.benchmark.run.results import Value
from nac_openood.evaluation.leave_one_out import RankedRun, RankedRuns
from nac_openood.evaluation.ranking import CRITERIA
from nac_openood.report.analysis.pictures import picture_of
from nac_openood.report.blocks import Picture
from nac_openood.report.figures.canvas import DASHES, ID_COLOR, OOD_COLOR, OUR_COLOR
from nac_openood.tables import Lines, Series

_STEPS_SIZE = (330, 250)
_VOLUME = ("nac-me", "validation")
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
        lines = axis.plot(at, shown, label="G", ms=4, lw=2, **_LOOKS["nac-me"])
        for name, values in curves.items():
            label = f"{name} accuracy"
            lines += right.plot(at, values, label=label, ms=3.5, lw=1.5, **_LOOKS[name])
        best = int(np.argmax(coverage))
        axis.axvline(at[best], color=OUR_COLOR, lw=0.8, ls=":")
        axis.set_xlabel("training step" if numbered else "checkpoint")
        unit = f", 1e{power}" if power else ""
        axis.set_ylabel(f"coverage G{unit}", color=OUR_COLOR)
        right.set_ylabel("accuracy, %")
        right.spines["right"].set_visible(True)
        axis.locator_params(axis="x", nbins=5)
        axis.legend(handles=lines, loc="lower left", bbox_to_anchor=(-0.2, 1.0), ncols=3,
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


def volume_picture(ranked: RankedRuns) -> Optional[Picture]:
    """RC over the share of test data that it is measured with; means and deviations over runs."""
    points = {criterion: _volume_points(ranked.runs, criterion) for criterion in _VOLUME}
    series = [Series(CRITERIA[criterion], found) for criterion, found in points.items() if found]
    if not series:
        return None
    return picture_of(
        Lines(
            "volume", "RC against the volume of test data",
            "share of the test data, % (log scale)", "RC with test accuracy", series, log_x=True,
        )
    )  # fmt: skip


def _volume_points(
    runs: Sequence[RankedRun], criterion: str
) -> list[tuple[float, float, Optional[float]]]:
    """(share in percent, mean RC times 100, standard deviation over runs)."""
    by_share: dict[float, list[float]] = {}
    for run in runs:
        for point in run.ranking.volume:
            if point.criterion == criterion and point.mean is not None:
                by_share.setdefault(100 * point.share, []).append(100 * point.mean)
    return [(share, *Value.of(values)) for share, values in sorted(by_share.items())]
