"""The comparison as plain text for a terminal of 100 columns."""

from __future__ import annotations

from textwrap import wrap
from typing import Callable, Sequence

from nac_openood.benchmark.run.results import Results
from nac_openood.report.blocks import Column, Line, Table
from nac_openood.report.order import standings
from nac_openood.report.sections.headline import verdict
from nac_openood.report.sections.ranking import metric_notes, ranking_table

_WIDTH, _NAME = 100, 20
#: Which standard deviations to show: all, or fewer where the table would be too wide.
_SPREADS: Sequence[Callable[[Column], bool]] = (
    lambda column: True,
    lambda column: column.better == "higher",
    lambda column: False,
)


def summary_table(results: Results) -> str:
    """The ranking with `>` before our methods, then where they stand, and notes.

    No line is longer than 100 columns.
    """
    order = standings(results)
    notes = [f"Note: {note}" for note in results.notes]
    paragraphs = [*metric_notes(order), verdict(results, order), *notes]
    below = [line for text in paragraphs for line in ("", *wrap(text, _WIDTH))]
    return "\n".join([*text_table(ranking_table(results, order)), *below])


def text_table(table: Table) -> list[str]:
    """A table as lines of at most 100 columns."""
    rows = [line for line in table.lines if not line.problem]
    for keep in _SPREADS:
        lines = _aligned(table, rows, keep)
        if max(map(len, lines)) <= _WIDTH:
            break
    problems = [f"    {line.cells[-1]} {line.problem}" for line in table.lines if line.problem]
    return [_fit(line) for line in (*lines, *problems)]


def _aligned(table: Table, rows: Sequence[Line], keep: Callable[[Column], bool]) -> list[str]:
    """Headings and rows: numbers to the right, names to the left, two spaces in between."""
    grid: list[list[str]] = []
    for number, column in enumerate(table.columns):
        if column.in_terminal:
            cells = [line.cells[number] for line in rows]
            texts = [str(cell) if keep(column) else cell.text for cell in cells]
            if column.kind == "name":
                marks = ["> " if line.ours else "  " for line in rows]
                texts = [_fit(mark + text, _NAME) for mark, text in zip(marks, texts)]
            texts = [*_heads(column), *texts]
            width = max(map(len, texts))
            left = column.kind == "name"
            grid.append([text.ljust(width) if left else text.rjust(width) for text in texts])
    lines = ["  ".join(parts).rstrip() for parts in zip(*grid)]
    return [line for line in lines if line]


def _heads(column: Column) -> list[str]:
    """Three lines; titles without a note stand in the last one."""
    if column.note:
        return [column.group, column.title, column.note]
    return ["", column.group, column.title]


def _fit(text: str, width: int = _WIDTH) -> str:
    line = " ".join(text.splitlines()).rstrip()
    return line if len(line) <= width else line[: width - 1] + "\u2026"
