"""What a report is made of, and its forms: page, Markdown, LaTeX, text for a terminal, CSV."""

from __future__ import annotations

import csv
import io
import re
from html import escape
from itertools import accumulate, count, groupby, product
from math import isfinite
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from nac_openood import files
from nac_openood.__about__ import __version__
from nac_openood.detector.display import share_text
from nac_openood.report.figures import Picture, picture_of, svg
from nac_openood.report.formatting import ordinal, set_title
from nac_openood.tables import Cell, Column, Entry, Examples, Figure, Table, text_columns

_ASSETS = Path(__file__).parent / "assets"
_WIDTH, _NAME = 100, 20  # columns of a terminal, and of a name in it
#: The note below a heading, which stands in parentheses in Markdown and LaTeX.
_NOTE = r"\n(.*)"
#: Columns (by which values are better in them) that show standard deviations: the first choice, and
#: what is tried next if there is no room.
_SPREADS = (("higher", "lower", ""), ("higher",), ())


class Figures(NamedTuple):
    """Figures side by side below a paragraph; Markdown leaves out both."""

    figures: Sequence[Union[Figure, Picture]]
    text: str = ""


class Section(NamedTuple):
    """A part of a report, or of a section; `key` is its id on the page."""

    key: str
    title: str
    blocks: Sequence[Content]


#: A string is a paragraph, a list of strings a list of sentences.
Content = Union[str, list[str], Table, Figures, Examples, Section]


class Tile(NamedTuple):
    """A number in large print, followed by `small`, with `lines` below."""

    name: str
    value: str
    small: str
    lines: Sequence[str] = ()


class Document(NamedTuple):
    """A whole report.

    Args:
        title: of the page.
        arch: name of the network.
        verdict: the result in a sentence or two.
        sections: in order; those without blocks are left out.
        facts: numbers of methods, datasets and so on.
        notes: what a reader should know before reading the numbers.
        tiles: a title and tiles for each method to show at the top.
        topic: a line above the title.
        command: the command that makes the report again.
        about: names and values by heading: data, versions and so on.
        story: what to open with, before the verdict, as the macro `opening` in `blocks.html` takes
            it; Markdown has only `seen` and `caught`.
    """

    title: str
    arch: str
    verdict: str
    sections: Sequence[Section]
    facts: Sequence[str] = ()
    notes: Sequence[str] = ()
    tiles: Sequence[tuple[str, Sequence[Tile]]] = ()
    topic: str = "Out-of-distribution detection"
    command: str = ""
    about: Mapping[str, Mapping[str, str]] = {}
    story: Mapping[str, Any] = {}


def paper_section(
    heads: Sequence[str], rows: Sequence[Any], spread: str, *texts: str, undefined: Entry = None
) -> Section:
    """The section that compares measured with published numbers.

    Args:
        heads: the headings of the first two columns; the third one is the metric.
        rows: the texts of the first three columns, a dict with `measured`, `published` and
            `difference`, and whether to highlight the row.
        spread: ending of the names of standard deviations or errors in these dicts.
        texts: paragraphs above the table.
        undefined: shown where nothing was measured.
    """
    columns = text_columns(*heads, "Metric")
    columns += map(Column, ("Measured", "Published", "Difference"))
    lines: list[list[Entry]] = []
    for names, numbers, _ in rows:
        pairs = [(numbers.get(k), numbers.get(f"{k}_{spread}")) for k in ("measured", "published")]
        measured = undefined if pairs[0][0] is None else pairs[0]
        difference = numbers.get("difference")
        shown = None if difference is None else f"{difference:+.2f}"
        lines.append([*names, measured, pairs[1], shown])
    table = Table("", columns, lines, [number for number, row in enumerate(rows) if row[2]])
    return Section("paper", "Measured and published results", [*texts, table] if rows else [])


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
        picture=picture_of, svg=lambda picture: svg(picture, f"picture-{next(numbers)}"),
        kind=lambda block: type(block).__name__, cell=Cell.of, groups=_groups,
        ordinal=ordinal, set_title=set_title, share=share_text,
    )  # fmt: skip
    sections = [section for section in content.sections if section.blocks]
    page = templates.get_template("page.html")
    return page.render(document=content, sections=sections, version=__version__)


def _groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """The headings above the titles and how many columns each spans; empty without any."""
    found = [(title, len(list(own))) for title, own in groupby(columns, lambda c: c.group)]
    return found if any(title for title, _ in found) else []


def render_markdown(content: Document) -> str:
    """A document as Markdown, without its figures."""
    parts = [
        f"# {_escaped(content.title)}",
        *([_escaped("{seen} {caught}".format(**content.story))] if content.story else []),
        f"**{_escaped(content.verdict)}**",
        _escaped(" \u00b7 ".join([content.arch, *content.facts])) + ".",
        *_markdown([f"Note: {note}" for note in content.notes]),
    ]
    for section in content.sections:
        parts += _markdown(section, "##")
    about: list[Content] = [
        Section("", title, [[f"{name}: {value}" for name, value in own.items()]])
        for title, own in content.about.items()
    ]
    if content.command:
        parts.append(f"## Command to reproduce it\n\n```\n{content.command}\n```")
    parts += _markdown(Section("", "About this report", about), "##")
    return "\n\n".join(parts) + "\n"


def _markdown(block: Content, level: str = "###") -> Iterator[str]:
    """The block's paragraphs; figures have none."""
    if isinstance(block, str):
        yield _escaped(block)
    elif isinstance(block, list) and block:
        yield "\n".join(f"- {_escaped(item)}" for item in block)
    elif isinstance(block, Section):
        texts = [text for each in block.blocks for text in _markdown(each)]
        yield from [f"{level} {_escaped(block.title)}", *texts] if texts else []
    elif isinstance(block, Table):
        if block.title:
            yield f"### {_escaped(block.title)}"
        if block.rows:
            yield _markdown_table(block)


def _markdown_table(table: Table) -> str:
    heads = [f"{c.group} " + re.sub(_NOTE, r" (\1)", c.title) for c in table.columns]
    lines = [[_escaped(head) for head in heads]]
    lines.append(["---:" if column.number else "---" for column in table.columns])
    for number, row in enumerate(table.rows):
        cells = [_escaped(Cell.of(entry)) for entry in row]
        if number in table.ours:
            cells[table.name_column] = f"**{cells[table.name_column]}**"
        lines.append(cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(value: object) -> str:
    """One line that neither breaks a table nor starts a tag."""
    return escape(" ".join(str(value).split()), quote=False).replace("|", "\\|")


def text_table(table: Table, most: Optional[int] = None) -> list[str]:
    """A table as lines of at most 100 characters, with the first `most` columns at most.

    Standard deviations, then the last columns, are left out where there is no room for them.
    """
    for shown, spreads in product(range(most or len(table.columns), 1, -1), _SPREADS):
        lines = _aligned(table, shown, spreads)
        if max(map(len, lines)) <= _WIDTH:
            break
    return [shortened(line) for line in lines]


def _aligned(table: Table, shown: int, spreads: Sequence[str]) -> list[str]:
    """Headings and rows: numbers to the right, names to the left, two spaces in between."""
    grid = []
    for number, column in enumerate(table.columns[:shown]):
        cells = [Cell.of(row[number]) for row in table.rows]
        texts = [str(cell) if column.better in spreads else cell.text for cell in cells]
        is_name = number == table.name_column
        if is_name:
            marks = ["> " if row in table.ours else "  " for row in range(len(texts))]
            texts = [mark + text for mark, text in zip(marks, texts)]
            short = [shortened(text, _NAME) for text in texts]
            texts = short if len(set(short)) == len(set(texts)) else texts
        texts = [*["", column.group, *column.title.split("\n")][-3:], *texts]
        width = max(map(len, texts))
        grid.append([text.ljust(width) if is_name else text.rjust(width) for text in texts])
    lines = ["  ".join(parts).rstrip() for parts in zip(*grid)]
    return [line for line in lines if line]


def shortened(text: str, width: int = _WIDTH) -> str:
    """A text on one line of a terminal."""
    line = " ".join(text.splitlines()).rstrip()
    return line if len(line) <= width else line[: width - 1] + "\u2026"


#: What LaTeX reads as a command, and how to print it.
_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "\u00b1": r"$\pm$", "\u2013": "--",
    "\u2026": r"\ldots{}",
}  # fmt: skip


def latex_text(text: object) -> str:
    """A text on one line as LaTeX prints it."""
    return "".join(_LATEX.get(character, character) for character in " ".join(str(text).split()))


def latex_table(table: Table, caption: str, label: str) -> str:
    """A table as a float with rules of the package booktabs; the best of a column is bold.

    Args:
        table: the table; cells with rank 1 are bold, and those with rank 2 underlined.
        caption: as text.
        label: for references.
    """
    groups = _groups(table.columns)
    # a note goes below the title: beside it, six columns would be wider than a page
    parts = [re.sub(_NOTE, "\n(\\1)", column.title).split("\n") for column in table.columns]
    stacks = [r"\\".join(map(latex_text, part)) for part in parts]
    titles = [rf"\shortstack[r]{{{s}}}" if r"\\" in s else s for s in stacks]
    lines = [
        r"\begin{table}", r"\centering", r"\footnotesize\setlength{\tabcolsep}{2pt}",
        rf"\caption{{{latex_text(caption)}}}",
        rf"\label{{{label}}}",
        rf"\begin{{tabular}}{{{''.join('r' if c.number else 'l' for c in table.columns)}}}",
        r"\toprule",
    ]  # fmt: skip
    if groups:
        spans = [rf"\multicolumn{{{n}}}{{c}}{{{latex_text(title)}}}" for title, n in groups]
        ends = list(accumulate(n for _, n in groups))
        rules = [rf"\cmidrule(lr){{{e - n + 1}-{e}}}" for e, (t, n) in zip(ends, groups) if t]
        lines += [" & ".join(spans) + r" \\", "".join(rules)]
    lines += [" & ".join(titles) + r" \\", r"\midrule"]
    for row in table.rows:
        cells = [Cell.of(entry) for entry in row]
        marks = {1: r"\textbf{%s}", 2: r"\underline{%s}"}
        texts = [marks.get(c.rank or 0, "%s") % latex_text(c.text) for c in cells]
        spreads = [
            rf" {{\scriptsize {latex_text(c.spread.replace(' ', ''))}}}" if c.spread else ""
            for c in cells
        ]
        lines.append(" & ".join(map("".join, zip(texts, spreads))) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Records as CSV, with an empty cell for `None`, NaN, infinity and what a record lacks."""

    def entry(value: Any) -> Any:
        if isinstance(value, bool):
            return str(value).lower()
        return None if isinstance(value, float) and not isfinite(value) else value

    out = io.StringIO()
    names = dict.fromkeys(name for record in records for name in record)
    lines = csv.DictWriter(out, list(names), lineterminator="\n")
    lines.writeheader()
    lines.writerows({name: entry(record[name]) for name in record} for record in records)
    return out.getvalue()


def write_html(folder: Path, content: Document) -> Path:
    """Write `report.html` into a folder.

    Raises:
        NACError: if matplotlib is not installed.
    """
    return files.write_text(folder / "report.html", render_page(content))


def write_results(
    folder: Path,
    csv_content: str,
    content: Document,
    more: Mapping[str, str] = {},
) -> list[Path]:
    """Write `results.csv`, `results.md` and `more` texts by name; none needs matplotlib."""
    texts = {"results.csv": csv_content, "results.md": render_markdown(content), **more}
    return [files.write_text(folder / name, text) for name, text in texts.items()]
