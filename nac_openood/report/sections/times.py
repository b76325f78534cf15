"""What a method costs in time and memory, and what AUROC it buys."""

from __future__ import annotations

from typing import Any, Optional, Sequence

from nac_openood.benchmark.run.results import GROUP_NAMES, Results
from nac_openood.report.blocks import Cell, Column, Line, Picture, Pictures, Section, Table
from nac_openood.report.figures.canvas import FAINT, INK, OUR_COLOR, PAPER, log_axis
from nac_openood.report.figures.labels import label_points
from nac_openood.report.order import Standing, measured_groups
from nac_openood.report.sections.ranking import uncertain_times
from nac_openood.report.words import quantity

_COLUMNS = {"ms_per_image": "ms / image", "setup_seconds": "Setup, s", "peak_mb": "Peak MB"}
_SIZE = (440, 350)
_Point = tuple[Standing, float, float]


def times(results: Results, order: Sequence[Standing]) -> Optional[Section]:
    """AUROC over time as a picture, then times and memory as a table."""
    measured = [s for s in order if s.times]
    if not measured:
        return None
    text = "Times include the forward pass of the network, as if each method ran alone."
    groups = [g for g in measured_groups(results) if timed(order, g)]
    pictures = Pictures(
        "wider",
        [time_picture(order, g) for g in groups],
        text="Up and to the left is better. Our methods are blue diamonds." if groups else "",
    )
    columns = [Column("Method", "name"), *map(Column, _COLUMNS.values())]
    lines = []
    for s in measured:
        cells = [
            Cell.of_quantity(s.times.get(key), uncertain=s.disturbed and key == "ms_per_image")
            for key in _COLUMNS
        ]
        lines.append(Line([Cell(s.title), *cells], s.ours))
    table = Table("", columns, lines, sortable=True)
    return Section("times", "Time and memory", [text, *uncertain_times(order), pictures, table])


def timed(order: Sequence[Standing], group: str) -> list[_Point]:
    """Methods with a time and an AUROC: standing, milliseconds, percent."""
    found = []
    for s in order:
        value, ms = s.value(group), s.times.get("ms_per_image")
        if value is not None and ms is not None and ms > 0:
            found.append((s, ms, value.mean))
    return found


def time_picture(order: Sequence[Standing], group: str) -> Picture:
    """AUROC of a group over milliseconds per image, on a logarithmic scale."""
    found, title = timed(order, group), GROUP_NAMES[group]

    def paint(figure: Any) -> None:
        axis = figure.add_axes((0.12, 0.14, 0.86, 0.84))
        _scales(axis, [p[1] for p in found], [p[2] for p in found])
        axis.set_ylabel(f"{title} AUROC, %")
        for standing, ms, auroc in found:
            look = {"marker": "o", "s": 30, "color": FAINT, "edgecolor": PAPER, "linewidth": 0.6}
            if standing.ours:
                look.update(marker="D", s=62, color=OUR_COLOR, zorder=4)
            axis.scatter([ms], [auroc], **look)
        first = sorted(found, key=lambda point: not point[0].ours)
        label_points(axis, [(ms, auroc, s.title, _style(s)) for s, ms, auroc in first])

    listed = ", ".join(f"{s.title} {quantity(ms)} ms and {auroc:.1f} %" for s, ms, auroc in found)
    return Picture(title, f"Time per image and {title} AUROC: {listed}.", _SIZE, paint)


def _scales(axis: Any, times: Sequence[float], aurocs: Sequence[float]) -> None:
    from matplotlib.ticker import LogLocator

    log_axis(axis)
    axis.set_xlim(min(times) / 1.6, max(times) * 2.2)
    low, high = min(aurocs), max(aurocs)
    room = max(0.12 * (high - low), 0.5)
    axis.set_ylim(low - room, high + room)
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.minorticks_off()
    axis.set_xlabel("milliseconds per image (log scale)")
    axis.grid()
    axis.set_axisbelow(True)


def _style(standing: Standing) -> dict[str, Any]:
    look = {"color": OUR_COLOR, "weight": "bold"} if standing.ours else {"color": INK}
    return {"fontsize": 8.5, **look}
