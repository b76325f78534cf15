"""A bar a method, best on top."""

from __future__ import annotations

from typing import Any, Sequence

from nac_openood.compare.results import Value
from nac_openood.report.figures.canvas import CALM, FAINT, INK, NAC_COLOR, svg
from nac_openood.report.markup import Html
from nac_openood.report.order import NAC, Standing
from nac_openood.report.words import GROUP_TITLES, number

#: Where bars begin: a coin's AUROC, no false alarm.
_ORIGIN = {"AUROC": 50.0, "FPR@95": 0.0}
_ROW, _WIDTH = 18, 380


def draw_bars(key: str, order: Sequence[Standing], group: str, metric: str) -> Html:
    """Bars of a metric with whiskers of one standard deviation over runs."""
    found = [(s, s.values[group, metric]) for s in order if (group, metric) in s.values]
    found.sort(key=lambda pair: pair[1].mean, reverse=metric == "AUROC")
    height = 54 + _ROW * len(found)

    def draw(figure: Any) -> None:
        axis = figure.add_axes((0.22, 38 / height, 0.67, 1 - 44 / height))
        _bars(axis, found, metric)

    return svg(key, _alt(found, group, metric), (_WIDTH, height), draw)


def _bars(axis: Any, found: Sequence[tuple[Standing, Value]], metric: str) -> None:
    origin = _ORIGIN[metric]
    for y, (standing, value) in enumerate(found):
        is_nac = standing.method == NAC
        color = NAC_COLOR if is_nac else CALM
        axis.barh(y, value.mean - origin, left=origin, height=0.66, color=color)
        if value.std is not None:
            axis.plot([value.mean - value.std, value.mean + value.std], [y, y], color=INK, lw=1)
        edge = max(value.mean + (value.std or 0), origin)
        weight = "bold" if is_nac else "normal"
        axis.annotate(
            f"{value.mean:.1f}", (edge, y), (4, 0), textcoords="offset points", va="center",
            fontsize=9, weight=weight, annotation_clip=False,
        )  # fmt: skip
    axis.set_yticks(range(len(found)), [s.title for s, _ in found])
    for label, (standing, _) in zip(axis.get_yticklabels(), found):
        if standing.method == NAC:
            label.set(weight="bold", color=NAC_COLOR)
    axis.set_ylim(len(found) - 0.4, -0.6)
    lowest = min(v.mean - (v.std or 0) for _, v in found)
    axis.set_xlim(min(origin, lowest), 100)
    axis.axvline(origin, color=FAINT, lw=0.8)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.grid(axis="x")
    axis.set_axisbelow(True)
    axis.set_xlabel(
        "AUROC, % (50 is chance)" if metric == "AUROC" else "FPR@95, % (lower is better)"
    )


def _alt(found: Sequence[tuple[Standing, Value]], group: str, metric: str) -> str:
    listed = ", ".join(f"{s.title} {number(v, 1)}" for s, v in found)
    return f"Bars of {GROUP_TITLES[group]} {metric} in percent, best first: {listed}."
