"""A metric of all methods as bars, best on top."""

from __future__ import annotations

from typing import Any, Sequence

from nac_openood.benchmark.run.results import GROUP_NAMES
from nac_openood.report.blocks import Picture
from nac_openood.report.figures.canvas import CALM, FAINT, INK, OUR_COLOR, name_rows, write_value
from nac_openood.report.order import Standing
from nac_openood.report.words import SHOWN, value_text

#: Where bars begin, unless a value is lower: chance for AUROC.
_ORIGIN = {"AUROC": 50.0}
_ROW, _WIDTH = 18, 380


def bar_picture(order: Sequence[Standing], group: str, key: str) -> Picture:
    """Bars of a metric with whiskers of one standard deviation over runs."""
    metric, origin = SHOWN[key], _ORIGIN.get(key, 0.0)
    found = [(s, s.values[group, key]) for s in order if (group, key) in s.values]
    found.sort(key=lambda pair: pair[1].mean, reverse=metric.better == "higher")
    height = 54 + _ROW * len(found)

    def paint(figure: Any) -> None:
        axis = figure.add_axes((0.22, 38 / height, 0.67, 1 - 44 / height))
        for y, (s, value) in enumerate(found):
            spread = value.std or 0
            color = OUR_COLOR if s.ours else CALM
            axis.barh(y, value.mean - origin, left=origin, height=0.66, color=color)
            if value.std is not None:
                axis.plot([value.mean - spread, value.mean + spread], [y, y], color=INK, lw=1)
            weight = "bold" if s.ours else "normal"
            write_value(axis, max(value.mean + spread, origin), y, f"{value.mean:.1f}", weight)
        name_rows(axis, [s.title for s, _ in found], [s.ours for s, _ in found])
        axis.set_xlim(min([origin, *(v.mean - (v.std or 0) for _, v in found)]), 100)
        axis.axvline(origin, color=FAINT, lw=0.8)
        axis.grid(axis="x")
        hint = "50 is chance" if origin else f"{metric.better} is better"
        axis.set_xlabel(f"{metric.title}, % ({hint})")

    title = f"{GROUP_NAMES[group]} {metric}"
    listed = ", ".join(f"{s.title} {value_text(v, 1)}" for s, v in found)
    alt = f"Bars of {title} in percent, best first: {listed}."
    return Picture(title, alt, (_WIDTH, height), paint)
