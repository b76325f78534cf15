"""Renders reports as an HTML page, as Markdown, as text for a terminal, and as CSV."""

from __future__ import annotations

import csv
import io
import re
from html import escape
from itertools import count, groupby
from math import isfinite
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Sequence

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from nac_openood import files
from nac_openood.report.blocks import Bullets, Content, Document, Facts, Heading
from nac_openood.report.drawing import svg
from nac_openood.report.formatting import ordinal, set_title
from nac_openood.tables import Cell, Column, Table

_ASSETS = Path(__file__).parent / "assets"
_WIDTH, _NAME = 100, 20  # columns of a terminal, and of a name in it
#: Which standard deviations to show: all, or fewer where the table would be too wide.
_SPREADS: Sequence[Callable[[Column], bool]] = (
    lambda column: True,
    lambda column: column.better == "higher",
    lambda column: False,
)


def render_page(content: Document) -> str:
    """A document as one HTML file that loads nothing else.

    Raises:
        NACError: if matplotlib is not installed.
    """
    templates = Environment(
        loader=FileSystemLoader(_ASSETS), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    numbers = count(1)
    templates.filters.update(
        svg=lambda picture: svg(picture, f"picture-{next(numbers)}"),
        ordinal=ordinal,
        set_title=set_title,
        cell=Cell.of,
        kind=lambda block: type(block).__name__,
        groups=_groups,
    )
    sections = [section for section in content.sections if section is not None]
    return templates.get_template("page.html").render(document=content, sections=sections)


def _groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """The headings above the titles and how many columns each spans; empty without any."""
    found = [(title, len(list(own))) for title, own in groupby(columns, lambda c: c.group)]
    return found if any(title for title, _ in found) else []


def render_markdown(content: Document) -> str:
    """A document as Markdown, without its figures."""
    parts = [
        f"# {_escaped(content.title)}",
        f"**{_escaped(content.verdict)}**",
        _escaped(" \u00b7 ".join([content.arch, *content.facts])) + ".",
        *_markdown(Bullets([f"Note: {note}" for note in content.notes])),
    ]
    for section in content.sections:
        texts = [text for block in section.blocks for text in _markdown(block)] if section else []
        parts += [f"## {section.title}", *texts] if section and texts else []
    return "\n\n".join(parts) + "\n"


def _markdown(block: Content) -> Iterator[str]:
    """The block's paragraphs; figures have none."""
    if isinstance(block, str):
        yield _escaped(block)
    elif isinstance(block, Heading):
        yield f"### {_escaped(block.text)}"
    elif isinstance(block, Table):
        yield from _markdown_table(block)
    elif isinstance(block, Bullets) and block.items:
        yield "\n".join(f"- {_escaped(item)}" for item in block.items)
    elif isinstance(block, Facts):
        if block.command:
            longest = max(map(len, re.findall("`+", block.command)), default=0)
            fence = "`" * max(3, longest + 1)
            yield f"### Command to reproduce it\n\n{fence}\n{block.command}\n{fence}"
        for title, pairs in block.lists:
            yield f"### {title}"
            yield from _markdown(Bullets([f"{name}: {value}" for name, value in pairs]))


def _markdown_table(table: Table) -> Iterator[str]:
    if table.title:
        yield f"### {_escaped(table.title)}"
    if table.rows:
        lines = [[_escaped(column.full_title) for column in table.columns]]
        lines.append(["---:" if column.number else "---" for column in table.columns])
        for number, row in enumerate(table.rows):
            cells = [Cell.of(entry) for entry in row]
            bold = [cell.best for cell in cells]
            bold[table.name_column] |= number in table.ours
            lines.append([f"**{_escaped(c)}**" if b else _escaped(c) for c, b in zip(cells, bold)])
        yield "\n".join(f"| {' | '.join(line)} |" for line in lines)
    yield from _markdown(
        Bullets([f"{name} {problem}" for name, problem in getattr(table, "problems", ())])
    )


def _escaped(value: object) -> str:
    """One line that neither breaks a table nor starts a tag."""
    return escape(" ".join(str(value).split()), quote=False).replace("|", "\\|")


def text_table(table: Table) -> list[str]:
    """A table as lines of at most 100 columns.

    Standard deviations, then the last columns, are left out where there is no room for them.
    """
    for shown, keep in ((n, k) for n in range(len(table.columns), 1, -1) for k in _SPREADS):
        lines = _aligned(table, shown, keep)
        if max(map(len, lines)) <= _WIDTH:
            break
    problems = [f"    {name} {problem}" for name, problem in getattr(table, "problems", ())]
    return [_shortened(line, _WIDTH) for line in (*lines, *problems)]


def _aligned(table: Table, shown: int, keep: Callable[[Column], bool]) -> list[str]:
    """Headings and rows: numbers to the right, names to the left, two spaces in between."""
    grid = []
    for number, column in enumerate(table.columns[:shown]):
        cells = [Cell.of(row[number]) for row in table.rows]
        texts = [str(cell) if keep(column) else cell.text for cell in cells]
        is_name = number == table.name_column
        if is_name:
            marks = ["> " if row in table.ours else "  " for row in range(len(texts))]
            texts = [_shortened(mark + text, _NAME) for mark, text in zip(marks, texts)]
        texts = [*["", column.group, *column.title.split("\n")][-3:], *texts]
        width = max(map(len, texts))
        grid.append([text.ljust(width) if is_name else text.rjust(width) for text in texts])
    lines = ["  ".join(parts).rstrip() for parts in zip(*grid)]
    return [line for line in lines if line]


def _shortened(text: str, width: int) -> str:
    line = " ".join(text.splitlines()).rstrip()
    return line if len(line) <= width else line[: width - 1] + "\u2026"


def csv_text(lines: Iterable[Sequence[Any]]) -> str:
    """Lines of texts and numbers as CSV, with an empty cell for `None`, NaN and infinity."""

    def entry(value: Any) -> Any:
        if isinstance(value, bool):
            return str(value).lower()
        return None if isinstance(value, float) and not isfinite(value) else value

    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([entry(v) for v in line] for line in lines)
    return out.getvalue()


def write_results(folder: Path, csv_content: str, content: Document) -> list[Path]:
    """Write `results.csv` and `results.md` into a folder."""
    return [
        files.write_text(folder / "results.csv", csv_content),
        files.write_text(folder / "results.md", render_markdown(content)),
    ]
