"""Measured numbers beside those of the paper."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Sequence

from nac_openood.benchmark.run.results import Results, Value
from nac_openood.report.blocks import Cell, Column, Line, Section, Table
from nac_openood.report.order import Standing
from nac_openood.report.words import NOTHING, is_number, metric, set_title


class PaperRow(NamedTuple):
    """A row: three texts that say what it is about, its numbers, and whether to highlight it.

    `numbers` has `measured`, `published` and `difference`.
    """

    texts: Sequence[str]
    numbers: Mapping[str, Any]
    ours: bool


def against_paper(results: Results, order: Sequence[Standing]) -> Optional[Section]:
    """Measured and published numbers side by side."""
    known = {s.method: s for s in order}
    rows = []
    for row in results.paper:
        s = known.get(row["method"])
        title = s.title if s else row["method"]
        texts = (title, set_title(row["dataset"]), str(metric(row["metric"])))
        rows.append(PaperRow(texts, row, s is not None and s.ours))
    return paper_section(("Method", "Dataset"), rows, "std") if rows else None


def paper_section(
    heads: tuple[str, str], rows: Sequence[PaperRow], spread: str, *texts: str,
    undefined: str = NOTHING,
) -> Section:  # fmt: skip
    """The section that sets measured beside published numbers.

    Args:
        heads: the headings of the first two columns; the third one is the metric.
        rows: in order.
        spread: ending of the names of standard deviations or errors in their numbers.
        texts: paragraphs above the table.
        undefined: shown where nothing was measured.
    """
    columns = [
        Column(heads[0], "name"), Column(heads[1], "text"), Column("Metric", "text"),
        *map(Column, ("Measured", "Published", "Difference")),
    ]  # fmt: skip
    lines = []
    for row in rows:
        cells = [Cell(text) for text in row.texts]
        for key, nothing in (("measured", undefined), ("published", NOTHING)):
            mean: Any = row.numbers.get(key)
            std = row.numbers.get(f"{key}_{spread}")
            value = Value(mean, std if is_number(std) else None) if is_number(mean) else None
            cells.append(Cell(nothing) if value is None else Cell.of_mean(value))
        difference = row.numbers.get("difference")
        cells.append(Cell(f"{difference:+.2f}") if is_number(difference) else Cell())
        lines.append(Line(cells, ours=row.ours))
    return Section("paper", "Measured and published results", [*texts, Table("", columns, lines)])
