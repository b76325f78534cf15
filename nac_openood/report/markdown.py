"""`results.md`: a report as text, for a README, an issue or a diff."""

from __future__ import annotations

from html import escape
from typing import Iterator

from nac_openood.report.blocks import (
    Block,
    Bullets,
    Cell,
    Code,
    Column,
    Document,
    Facts,
    Heading,
    Table,
)


def render_markdown(found: Document) -> str:
    """Any document, without its pictures."""
    head = found.head
    parts = [
        f"# {_text(head.title)}",
        f"**{_text(head.verdict)}**",
        _text(" \u00b7 ".join([head.arch, *head.facts])) + ".",
        *_render(Bullets([f"Note: {note}" for note in head.notes])),
    ]
    for section in found.sections:
        shown = [text for block in section.blocks for text in _render(block)]
        parts += [f"## {section.title}", *shown] if shown else []
    return "\n\n".join(parts) + "\n"


def _render(block: Block) -> Iterator[str]:
    """The block's paragraphs; pictures have none."""
    if isinstance(block, str):
        yield _text(block)
    elif isinstance(block, Heading):
        yield f"### {_text(block.text)}"
    elif isinstance(block, Table):
        yield from _table(block)
    elif isinstance(block, Bullets):
        if block.items:
            yield "\n".join(f"- {_text(item)}" for item in block.items)
    elif isinstance(block, Code):
        fence = "```"
        while fence in block.text:
            fence += "`"
        yield f"{fence}\n{block.text}\n{fence}"
    elif isinstance(block, Facts):
        for title, pairs in block.lists:
            yield f"### {title}"
            yield "\n".join(f"- {_text(name)}: {_text(value)}" for name, value in pairs)


def _table(table: Table) -> Iterator[str]:
    rows = [line for line in table.lines if not line.problem]
    if table.title:
        yield f"### {_text(table.title)}"
    if rows:
        aligned = ["---:" if c.kind == "number" else "---" for c in table.columns]
        lines = [[_text(c.full_title) for c in table.columns], aligned]
        for row in rows:
            lines.append([_cell(c, cell, row.ours) for c, cell in zip(table.columns, row.cells)])
        yield "\n".join(f"| {' | '.join(line)} |" for line in lines)
    problems = [f"{line.cells[-1]} {line.problem}" for line in table.lines if line.problem]
    yield from _render(Bullets(problems))


def _cell(column: Column, cell: Cell, ours: bool) -> str:
    bold = cell.best or (ours and column.kind == "name")
    return f"**{_text(cell)}**" if bold else _text(cell)


def _text(value: object) -> str:
    """One line that neither breaks a table nor starts a tag."""
    return escape(" ".join(str(value).split()), quote=False).replace("|", "\\|")
