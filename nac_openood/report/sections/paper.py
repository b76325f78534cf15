"""Measured numbers beside those of the paper."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from nac_openood.benchmark.run.results import Results, Value
from nac_openood.report.blocks import Block, Cell, Column, Line, Section, Table
from nac_openood.report.order import Standing
from nac_openood.report.words import NOTHING, is_number, metric, set_title


def against_paper(results: Results, order: Sequence[Standing]) -> Optional[Section]:
    """Measured and published numbers side by side."""
    if not results.paper:
        return None
    known = {s.method: s for s in order}
    lines = []
    for row in results.paper:
        method = str(row.get("method", ""))
        s = known.get(method)
        texts = (s.title if s else method, set_title(str(row.get("dataset", ""))),
                 str(metric(str(row.get("metric", "")))))  # fmt: skip
        lines.append(paper_line(texts, row, "std", ours=s is not None and s.ours))
    return paper_section(Table("", paper_columns("Method", "Dataset"), lines))


def paper_columns(first: str, second: str) -> list[Column]:
    """The columns of such a table, of which the first two say what a row is about."""
    return [
        Column(first, "name"), Column(second, "text"), Column("Metric", "text"),
        Column("Measured"), Column("Published"), Column("Difference"),
    ]  # fmt: skip


def paper_line(
    texts: Sequence[str],
    row: Mapping[str, Any],
    spread: str,
    *,
    ours: bool,
    undefined: str = NOTHING,
) -> Line:
    """A row below `paper_columns`.

    Args:
        texts: the first three columns.
        row: with `measured`, `published` and `difference`.
        spread: ending of the names of standard deviations or errors in it.
        ours: whether to highlight it.
        undefined: shown where nothing was measured.
    """
    cells = []
    for key in ("measured", "published"):
        mean: Any = row.get(key)
        std = row.get(f"{key}_{spread}")
        if is_number(mean):
            cells.append(Cell.of_mean(Value(mean, std if is_number(std) else None)))
        else:
            cells.append(Cell(undefined if key == "measured" else NOTHING))
    difference = row.get("difference")
    cells.append(Cell(f"{difference:+.2f}" if is_number(difference) else NOTHING))
    return Line([*map(Cell, texts), *cells], ours=ours)


def paper_section(*blocks: Block) -> Section:
    """The section that sets measured beside published numbers."""
    return Section("paper", "Measured and published results", blocks)
