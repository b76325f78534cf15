"""What a report is made of, and its forms: page, Markdown, LaTeX, text for a terminal, CSV."""

from __future__ import annotations

import csv
import io
import re
from html import escape
from itertools import count, groupby, product
from math import isfinite
from pathlib import Path
from textwrap import wrap
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence, Union

import markupsafe
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nac_openood import files
from nac_openood.__about__ import __version__
from nac_openood.detector.display import share_text
from nac_openood.report.figures import Picture, picture_of, svg
from nac_openood.report.formatting import ordinal, set_title
from nac_openood.tables import Cell, Column, Entry, Examples, Figure, Table, text_columns

_ASSETS = Path(__file__).parent / "assets"
_WIDTH, _NAME = 100, 20  # columns of a terminal, and of a name in it
#: Which columns show standard deviations, by which values are better in them: the first choice, and
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
    return _rendered("page.html", markupsafe.escape, document=content)


def render_markdown(content: Document) -> str:
    """A document as Markdown, without its figures."""
    return _rendered("results.md.j2", _escaped, document=content)


def latex_table(table: Table, caption: str, label: str) -> str:
    """A table as a float with rules of the package booktabs; the best of a column is bold.

    Args:
        table: the table; cells with rank 1 are bold, and those with rank 2 underlined.
        caption: as text.
        label: for references.
    """
    return _rendered("table.tex.j2", latex_text, table=table, caption=caption, label=label)


#: LaTeX has many braces of its own, so its templates have other delimiters.
_LATEX_SYNTAX: Any = {
    "block_start_string": "<%", "block_end_string": "%>",
    "variable_start_string": "<<", "variable_end_string": ">>",
    "comment_start_string": "<#", "comment_end_string": "#>",
}  # fmt: skip


def _rendered(template: str, escape: Callable[[Any], str], **values: Any) -> str:
    """A template filled with values that are passed through `escape`."""
    environment = Environment(
        loader=FileSystemLoader(_ASSETS), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        finalize=lambda value: value if isinstance(value, Markup) else Markup(escape(value)),
        **(_LATEX_SYNTAX if escape is latex_text else {}),
    )  # fmt: skip
    numbers = count(1)
    environment.filters.update(
        picture=picture_of, svg=lambda picture: svg(picture, f"picture-{next(numbers)}"),
        kind=lambda block: type(block).__name__, cell=Cell.of, groups=_groups, heading=_heading,
        ordinal=ordinal, set_title=set_title, share=share_text,
    )  # fmt: skip
    return environment.get_template(template).render(values, version=__version__)


def _groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """The headings above the titles and how many columns each spans; empty without any."""
    found = [(title, len(list(own))) for title, own in groupby(columns, lambda c: c.group)]
    return found if any(title for title, _ in found) else []


def _heading(column: Column) -> str:
    """The title on one line, with its note in parentheses."""
    return re.sub(r"\n(.*)", r" (\1)", column.title)


def _escaped(value: object) -> str:
    """One line that neither breaks a table nor starts a tag."""
    return escape(" ".join(str(value).split()), quote=False).replace("|", "\\|")


def terminal_text(*blocks: Content) -> str:
    """Paragraphs, tables and lists of lines for a terminal, with an empty line in between."""
    parts: list[list[str]] = []
    for block in blocks:
        if isinstance(block, Table):
            parts.append(text_table(block))
        elif isinstance(block, (str, list)):
            parts.append(wrap(block, _WIDTH) if isinstance(block, str) else block)
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


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
