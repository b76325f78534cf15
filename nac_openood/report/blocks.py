"""The parts of a report, apart from tables: text, figures, sections. All renderers read these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from nac_openood.tables import Column, Entry, Example, Examples, Table


@dataclass(frozen=True)
class SortableTable(Table):
    """A table that readers of the page can sort.

    Args:
        problems: a name, and why there is no row for it; shown below the rows.
    """

    problems: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class ScoredExample(Example):
    """A sample with its score, and labels of its bars."""

    score: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Heading:
    """A heading inside a section."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True)
class Facts:
    """Lists of names and values, each with a title, below a command to copy if there is one."""

    lists: Sequence[tuple[str, Sequence[tuple[str, str]]]]
    command: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure that is drawn when the page is made.

    Args:
        title: above it.
        alt: what it shows, in words with numbers.
        size: width and height in CSS pixels.
        paint: draws into an empty matplotlib figure.
    """

    title: str
    alt: str
    size: tuple[float, float]
    paint: Callable[[Any], None]


@dataclass(frozen=True)
class Pictures:
    """Figures side by side.

    Args:
        layout: a CSS class, e.g. "panels".
        pictures: in order.
        title: a heading above them.
        text: a paragraph above them.
        legend: the CSS class of a key, or "", and its meaning.
    """

    layout: str
    pictures: Sequence[Picture]
    title: str = ""
    text: str = ""
    legend: Sequence[tuple[str, str]] = ()


#: A string is a paragraph.
Content = Union[str, Heading, Bullets, Table, Facts, Pictures, Examples]


@dataclass(frozen=True)
class Section:
    """A part of the report; `key` is its id on the page."""

    key: str
    title: str
    blocks: Sequence[Content]


@dataclass(frozen=True)
class Tile:
    """A number in large print, followed by `small`, with `lines` below."""

    name: str
    value: str
    small: str
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Document:
    """A whole report.

    Args:
        title: of the page.
        arch: name of the network.
        verdict: the result in a sentence or two.
        sections: in order; None is left out.
        facts: numbers of methods, datasets and so on.
        notes: what a reader should know before reading the numbers.
        tiles: a title and tiles for each method to show at the top.
        topic: a line above the title.
        version: version of this package.
    """

    title: str
    arch: str
    verdict: str
    sections: Sequence[Optional[Section]]
    facts: Sequence[str] = ()
    notes: Sequence[str] = ()
    tiles: Sequence[tuple[str, Sequence[Tile]]] = ()
    topic: str = "Out-of-distribution detection"
    version: str = ""


def about_section(
    what: str, command: str, facts: Mapping[str, Sequence[tuple[str, str]]]
) -> Section:
    """The section on how to repeat an analysis: its command, and names and values by heading."""
    lists = [(title, pairs) for title, pairs in facts.items() if pairs]
    return Section("about", f"About this {what}", [Facts(lists, command)])


def paper_section(
    heads: tuple[str, str],
    rows: Sequence[tuple[Sequence[str], Mapping[str, Any], bool]],
    spread: str,
    *texts: str,
    undefined: Optional[str] = None,
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
    columns = [Column(title, number=False) for title in (*heads, "Metric")]
    columns += map(Column, ("Measured", "Published", "Difference"))
    lines = []
    for names, numbers, _ in rows:
        line: list[Entry] = [*names]
        for key, missing in (("measured", undefined), ("published", None)):
            mean, std = numbers.get(key), numbers.get(f"{key}_{spread}")
            line.append(missing if mean is None else (mean, std))
        difference = numbers.get("difference")
        lines.append([*line, None if difference is None else f"{difference:+.2f}"])
    ours = [number for number, row in enumerate(rows) if row[2]]
    table = Table("", columns, lines, ours)
    return Section("paper", "Measured and published results", [*texts, table])
