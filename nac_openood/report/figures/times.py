"""What a method costs against what it is worth."""

from __future__ import annotations

from typing import Any, Sequence

from nac_openood.report.figures.canvas import FAINT, INK, NAC_COLOR, PAPER, svg
from nac_openood.report.figures.labels import label_points
from nac_openood.report.markup import Html
from nac_openood.report.order import NAC, Standing
from nac_openood.report.words import GROUP_TITLES, quantity

_SIZE = (440, 350)
Point = tuple[Standing, float, float]


def draw_times(key: str, order: Sequence[Standing], group: str) -> Html:
    """AUROC of a group over milliseconds an image, on a logarithmic scale."""
    found = timed(order, group)

    def draw(figure: Any) -> None:
        axis = figure.add_axes((0.12, 0.14, 0.86, 0.84))
        _points(axis, found)
        axis.set_ylabel(f"{GROUP_TITLES[group]} AUROC, %")

    return svg(key, _alt(found, group), _SIZE, draw)


def timed(order: Sequence[Standing], group: str) -> list[Point]:
    """Methods with a time and an AUROC: standing, milliseconds, percent."""
    found = []
    for s in order:
        value, ms = s.value(group), s.times.get("ms_per_image")
        if value is not None and ms is not None and ms > 0:
            found.append((s, ms, value.mean))
    return found


def _points(axis: Any, found: Sequence[Point]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    times, aurocs = [p[1] for p in found], [p[2] for p in found]
    axis.set_xscale("log")
    axis.set_xlim(min(times) / 1.6, max(times) * 2.2)
    low, high = min(aurocs), max(aurocs)
    room = max(0.12 * (high - low), 0.5)
    axis.set_ylim(low - room, high + room)
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.minorticks_off()
    axis.set_xlabel("milliseconds per image (log scale)")
    axis.grid()
    axis.set_axisbelow(True)
    for standing, ms, auroc in found:
        look = {"marker": "o", "s": 30, "color": FAINT, "edgecolor": PAPER, "linewidth": 0.6}
        if standing.method == NAC:
            look.update(marker="D", s=62, color=NAC_COLOR, zorder=4)
        axis.scatter([ms], [auroc], **look)
    plain, strong = {"fontsize": 8.5, "color": INK}, {"color": NAC_COLOR, "weight": "bold"}
    first = sorted(found, key=lambda p: p[0].method != NAC)
    styles = [{**plain, **(strong if p[0].method == NAC else {})} for p in first]
    label_points(axis, [(p[1], p[2]) for p in first], [p[0].title for p in first], styles)


def _alt(found: Sequence[Point], group: str) -> str:
    listed = ", ".join(f"{s.title} {quantity(ms)} ms and {auroc:.1f} %" for s, ms, auroc in found)
    return f"Time per image against {GROUP_TITLES[group]} AUROC: {listed}."
