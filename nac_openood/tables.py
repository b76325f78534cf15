"""Tables and figures as data, which analyses make and reports show; they can be stored as JSON.

`nac_openood.report` renders them as a page, as Markdown, as text for a terminal and as CSV.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Sequence, Union

import numpy as np

#: Shown where nothing was measured.
NOTHING = "\u2013"


@dataclass(frozen=True)
class Column:
    """The heading of a column.

    Args:
        title: the heading; what follows a line break is shown smaller.
        group: a heading above the title that neighboring columns share.
        better: "higher" or "lower"; empty where neither is better.
        number: whether the column holds numbers. The first column of text names the rows.
    """

    title: str
    group: str = ""
    better: str = ""
    number: bool = True


def text_columns(*titles: str) -> list[Column]:
    """Headings of columns of text."""
    return [Column(title, number=False) for title in titles]


@dataclass(frozen=True)
class Cell:
    """An entry of a table that is more than a text or a number.

    Args:
        text: what is shown.
        spread: shown smaller after the text, e.g. "± 0.10".
        value: what a page sorts by; None for the text itself.
        rank: 1, 2 and 3 are marked.
        code: whether the text is shown as code.
    """

    text: str
    spread: str = ""
    value: Optional[float] = None
    rank: Optional[int] = None
    code: bool = False

    @classmethod
    def of(cls, entry: Entry, rank: Optional[int] = None) -> Cell:
        """How an entry is shown."""
        if isinstance(entry, (Cell, str)):
            return cls(entry) if isinstance(entry, str) else entry
        mean, std = entry if isinstance(entry, (list, tuple)) else (entry, None)
        if mean is None:
            return cls(NOTHING)
        return cls(f"{mean:.2f}", "" if std is None else f"\u00b1 {std:.2f}", float(mean), rank)

    def __str__(self) -> str:
        return f"{self.text} {self.spread}".rstrip()


#: A number (shown with two digits), a text, a mean with its standard deviation, or nothing.
Entry = Union[None, float, Cell, str, Sequence[Optional[float]]]


@dataclass(frozen=True)
class Table:
    """Rows below headings.

    Args:
        title: above the table.
        columns: the headings.
        rows: an entry per column.
        ours: numbers of the rows to highlight.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Entry]]
    ours: Sequence[int] = ()

    @property
    def name_column(self) -> int:
        """The number of the column that names the rows."""
        return next((i for i, column in enumerate(self.columns) if not column.number), 0)


@dataclass(frozen=True)
class Example:
    """A sample to show.

    Args:
        dataset: the name of its dataset.
        name: the name of its file, or its number.
        shares: percent by name, shown as bars.
        image: a picture as a data URL, or None.
        score: shown beside the name of the dataset.
        labels: shown beside the bars in place of percent.
    """

    dataset: str
    name: str
    shares: Mapping[str, float]
    image: Optional[str] = None
    score: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Examples:
    """Samples side by side below a title."""

    title: str
    samples: Sequence[Example]


#: A name, and a value for every bar or column, or None.
NamedRow = tuple[str, Sequence[Optional[float]]]


@dataclass(frozen=True)
class Figure:
    """What is drawn; `key` is its name in files, unique in a finding."""

    key: str
    title: str


@dataclass(frozen=True)
class Series:
    """A line: points are (x, y, standard deviation or None); `printed` marks the paper's."""

    name: str
    points: Sequence[Sequence[Optional[float]]]
    printed: bool = False


@dataclass(frozen=True)
class Lines(Figure):
    """Lines over an axis; `mark` is an x to mark, e.g. the settings in use, and `level` a y.

    With `diagonal`, both axes go from 0 to 100 and the line of equal values is drawn.
    """

    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    mark: Optional[float] = None
    diagonal: bool = False
    level: Optional[float] = None
    type: str = "lines"


@dataclass(frozen=True)
class BarGroups(Figure):
    """Horizontal bars: each row has a name and a value for every entry of `names`, or None.

    The axis goes from `origin` to `end` at least; the rows named in `ours` are highlighted.
    `spreads` are standard deviations, one per row; `width` is in CSS pixels.
    """

    x_label: str
    names: Sequence[str]
    rows: Sequence[NamedRow]
    origin: float = 0.0
    end: float = 100.0
    ours: Sequence[str] = ()
    spreads: Sequence[Optional[float]] = field(default_factory=list)
    width: float = 420.0
    type: str = "bars"


def metric_key(metric: str) -> str:
    """The name of a metric in file names: "auroc" or "fpr95"."""
    return metric.lower().replace("@", "")


def metric_bars(
    metric: str, title: str, names: Sequence[str], rows: Sequence[NamedRow],
    ours: Sequence[str] = (), **options: Any,
) -> BarGroups:  # fmt: skip
    """Bars of AUROC from chance on, or of FPR@95 from 0 on, in percent."""
    hint, origin = ("50 is chance", 50.0) if metric == "AUROC" else ("lower is better", 0.0)
    label = f"{metric}, % ({hint})"
    return BarGroups(metric_key(metric), title, label, names, rows, origin, ours=ours, **options)


@dataclass(frozen=True)
class Density:
    """Shares of ID and OOD samples between `edges`, `[bins]` each; `note` is shown above them."""

    edges: Sequence[float]
    inside: Sequence[float]
    outside: Sequence[float]
    note: str = ""

    @classmethod
    def of(cls, inside: np.ndarray, outside: np.ndarray, note: str = "", bins: int = 40) -> Density:
        """Bins over the middle 99 percent, so that a few outliers do not flatten the rest."""
        low, high = np.quantile(np.concatenate([inside, outside]), [0.005, 0.995])
        # values too close together for that many bins count as equal
        if not high - low > 1e-9 * max(abs(low), abs(high), 1e-9):
            half = max(0.01, abs(low) * 1e-3)
            low, high = low - half, high + half
        edges = np.linspace(low, high, bins + 1)
        counts = [np.histogram(v.clip(low, high), edges)[0] for v in (inside, outside)]
        shares = [(each / max(1, each.sum())).tolist() for each in counts]
        return cls(edges.tolist(), shares[0], shares[1], note)


@dataclass(frozen=True)
class Densities(Figure):
    """A grid of distributions, ID against OOD: rows of (title, a panel per column)."""

    x_label: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Density]]]
    inside: str = "ID"
    outside: str = "OOD"
    ours: Sequence[str] = field(default_factory=list)
    type: str = "densities"


@dataclass(frozen=True)
class Matrix(Figure):
    """Numbers in colored squares: each row has a name and a value for every column, or None."""

    columns: Sequence[str]
    rows: Sequence[NamedRow]
    limits: tuple[float, float] = (0.0, 1.0)
    type: str = "matrix"


#: Every kind of figure; files tell them apart by their fields.
AnyFigure = Union[Lines, BarGroups, Densities, Matrix]
