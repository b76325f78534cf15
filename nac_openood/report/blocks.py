"""What a report is made of. The page, Markdown and the terminal render the same blocks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any, Callable, Optional, Sequence, Union

from nac_openood.benchmark.run.results import Value
from nac_openood.report.words import NOTHING, quantity, value_text


@dataclass(frozen=True)
class Column:
    """The heading of a column.

    Args:
        title: e.g. "FPR@95".
        kind: "number", "text", "code", or "name" for the column that names the rows.
        group: a heading above the title that neighboring columns share, e.g. "Near-OOD".
        note: a remark below the title, e.g. "OOD found".
        better: "higher" or "lower"; empty where neither is better.
        in_terminal: whether the terminal, which has little room, shows it.
    """

    title: str
    kind: str = "number"
    group: str = ""
    note: str = ""
    better: str = ""
    in_terminal: bool = True

    @property
    def full_title(self) -> str:
        """All headings on one line: `Near-OOD FPR@95 (OOD found)`."""
        note = f"({self.note})" if self.note else ""
        return " ".join(part for part in (self.group, self.title, note) if part)


@dataclass(frozen=True)
class Cell:
    """One entry of a table.

    Args:
        text: what is shown.
        spread: shown smaller behind the text, e.g. "± 0.10".
        value: what the page sorts by; None for the text itself.
        rank: 1, 2 and 3 are marked.
        best: whether it is the best of its column.
    """

    text: str = NOTHING
    spread: str = ""
    value: Optional[float] = None
    rank: Optional[int] = None
    best: bool = False

    @classmethod
    def of_mean(cls, value: Optional[Value], rank: Optional[int] = None) -> Cell:
        """A mean with its standard deviation, two digits each."""
        text, _, spread = value_text(value).partition(" ")
        return cls(text, spread, None if value is None else value.mean, rank)

    @classmethod
    def of_quantity(cls, value: Optional[float], *, uncertain: bool = False) -> Cell:
        """A time or an amount, three digits; `~` marks an uncertain one."""
        mark = "~" if uncertain and value is not None else ""
        return cls(mark + quantity(value), value=value)

    def __str__(self) -> str:
        return f"{self.text} {self.spread}".rstrip()


@dataclass(frozen=True)
class Line:
    """A row of a table; `ours` is highlighted.

    A `problem` is told in place of the cells that are missing behind the row's name.
    """

    cells: Sequence[Cell]
    ours: bool = False
    problem: str = ""


@dataclass(frozen=True)
class Table:
    """Columns and rows below a title; readers of the page can sort it if `sortable`."""

    title: str
    columns: Sequence[Column]
    lines: Sequence[Line]
    sortable: bool = False

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The headings above the titles and how many columns each spans; empty without any."""
        found = [(k, len(list(columns))) for k, columns in groupby(self.columns, lambda c: c.group)]
        return found if any(title for title, _ in found) else []


@dataclass(frozen=True)
class Heading:
    """A heading inside a section."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True)
class Code:
    """Text to copy; `key` is its id on the page."""

    key: str
    text: str


@dataclass(frozen=True)
class Facts:
    """Lists of names and values, each with a title."""

    lists: Sequence[tuple[str, Sequence[tuple[str, str]]]]


@dataclass(frozen=True)
class Picture:
    """A figure that is drawn when the page is made.

    Args:
        title: above it.
        alt: what it shows, in words with numbers.
        size: width and height in CSS pixels.
        paint: fills the (empty) matplotlib figure it is given.
    """

    title: str
    alt: str
    size: tuple[float, float]
    paint: Callable[[Any], None]


@dataclass(frozen=True)
class Pictures:
    """Figures side by side, and what to say about them.

    Args:
        layout: a CSS class, e.g. "panels".
        pictures: in order.
        title: a heading above them.
        text: a paragraph above them.
        legend: the CSS class of a key, or "", and what it stands for.
    """

    layout: str
    pictures: Sequence[Picture]
    title: str = ""
    text: str = ""
    legend: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Card:
    """A sample of the gallery: `image` is a data URL, `bars` are (name, value, percent)."""

    image: Optional[str]
    dataset: str
    name: str
    score: str
    bars: Sequence[tuple[str, str, float]]


@dataclass(frozen=True)
class Cards:
    """Samples side by side below a title."""

    title: str
    cards: Sequence[Card]


#: A plain string is a paragraph.
Block = Union[str, Heading, Bullets, Table, Code, Facts, Pictures, Cards]


@dataclass(frozen=True)
class Section:
    """A part of the report; `key` is its id on the page."""

    key: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Tile:
    """A number in large print: `small` follows it, `below` are lines under it."""

    name: str
    value: str
    small: str
    below: Sequence[str] = ()


@dataclass(frozen=True)
class Headline:
    """Title, verdict and facts; `tiles` holds a title and tiles for each of our methods."""

    title: str
    arch: str
    verdict: str
    facts: Sequence[str]
    notes: Sequence[str]
    tiles: Sequence[tuple[str, Sequence[Tile]]]
    topic: str = "Out-of-distribution detection"


@dataclass(frozen=True)
class Document:
    """The top of the report and its sections; `version` is that of this package."""

    head: Headline
    sections: Sequence[Section]
    version: str = ""
