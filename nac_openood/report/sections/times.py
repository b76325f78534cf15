"""What a method costs in time and memory."""

from __future__ import annotations

from typing import Optional, Sequence

from nac_openood.benchmark.run.results import Results
from nac_openood.report.blocks import Cell, Column, Line, Pictures, Section, Table
from nac_openood.report.figures.times import time_picture, timed
from nac_openood.report.order import Standing, measured_groups
from nac_openood.report.sections.ranking import uncertain_times

_COLUMNS = {"ms_per_image": "ms / image", "setup_seconds": "Setup, s", "peak_mb": "Peak MB"}


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
