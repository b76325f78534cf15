"""What a study found: a sentence, tables, figures and numbers, all of them JSON values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Mapping, Optional, Sequence, Type, Union

from nac_openood import files
from nac_openood.analysis.about import About
from nac_openood.errors import NACError
from nac_openood.structure import checked, from_values

_FORMAT = 1

#: A number with two digits, a text as it is, a mean and its standard deviation, or nothing.
Entry = Union[None, float, str, Sequence[Optional[float]]]


@dataclass(frozen=True)
class ColumnHead:
    """The heading of a column: `group` stands above it, `better` is "higher", "lower" or ""."""

    title: str
    group: str = ""
    better: str = ""
    number: bool = True


@dataclass(frozen=True)
class DataTable:
    """Rows below headings.

    Args:
        title: above the table.
        columns: the headings.
        rows: an entry per column.
        ours: numbers of the rows to highlight.
    """

    title: str
    columns: Sequence[ColumnHead]
    rows: Sequence[Sequence[Entry]]
    ours: Sequence[int] = ()


@dataclass(frozen=True)
class Series:
    """A line: points are (x, y, standard deviation or None); `printed` marks the paper's."""

    name: str
    points: Sequence[Sequence[Optional[float]]]
    printed: bool = False


@dataclass(frozen=True)
class _Figure:
    """What all figures have: `key` is its name in files, unique in a finding."""

    key: str
    title: str


@dataclass(frozen=True)
class Lines(_Figure):
    """Lines over an axis; `mark` is an x to mark, e.g. the settings in use.

    With `diagonal`, both axes go from 0 to 100 and the line of equal values is drawn.
    """

    type: ClassVar[str] = "lines"
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    mark: Optional[float] = None
    diagonal: bool = False


@dataclass(frozen=True)
class BarGroups(_Figure):
    """Horizontal bars: each row has a name and a value for every entry of `names`, or None.

    The axis goes from `origin` to `end` at least; the rows named in `ours` are highlighted.
    """

    type: ClassVar[str] = "bars"
    x_label: str
    names: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Optional[float]]]]
    origin: float = 0.0
    end: float = 100.0
    ours: Sequence[str] = ()


@dataclass(frozen=True)
class Density:
    """Shares of ID and OOD samples between `edges`, `[bins]` each; `note` is written above."""

    edges: Sequence[float]
    inside: Sequence[float]
    outside: Sequence[float]
    note: str = ""


@dataclass(frozen=True)
class Densities(_Figure):
    """A grid of distributions, ID against OOD: rows of (title, a panel per column)."""

    type: ClassVar[str] = "densities"
    x_label: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Density]]]
    inside: str = "ID"
    outside: str = "OOD"


@dataclass(frozen=True)
class Matrix(_Figure):
    """Numbers in colored squares: each row has a name and a value for every column, or None."""

    type: ClassVar[str] = "matrix"
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Optional[float]]]]
    limits: Sequence[float] = (0.0, 1.0)


Figure = Union[Lines, BarGroups, Densities, Matrix]
_FIGURES: Mapping[str, Type[Any]] = {
    kind.type: kind for kind in (Lines, BarGroups, Densities, Matrix)
}


@dataclass(frozen=True)
class Example:
    """A sample to look at.

    Args:
        dataset: the set it is in.
        name: of its file, or its number.
        shares: percent by name, shown as bars.
        image: a picture as a data URL, or None.
    """

    dataset: str
    name: str
    shares: Mapping[str, float]
    image: Optional[str] = None


@dataclass(frozen=True)
class Examples:
    """Samples side by side below a title."""

    title: str
    samples: Sequence[Example]


@dataclass(frozen=True)
class Finding:
    """What a study found.

    Args:
        kind: name of the kind of analysis.
        title: title of its section.
        sentence: what it says, in one or two sentences.
        tables: to show.
        figures: to draw; their keys are unique.
        records: every number with its coordinates, for the CSV file; all have the same keys.
        values: other results as JSON values.
        notes: what a reader should know, a sentence each.
        about: which network and data it is about; filled in by `analyze`.
        gallery: samples to look at.
    """

    kind: str
    title: str
    sentence: str
    tables: Sequence[DataTable] = ()
    figures: Sequence[Figure] = ()
    records: Sequence[Mapping[str, Any]] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    about: Optional[About] = None
    gallery: Sequence[Examples] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON values that `from_dict` reads."""
        figures = [{"type": figure.type, **asdict(figure)} for figure in self.figures]
        return {**asdict(self), "figures": figures}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Finding:
        """What `to_dict` gave.

        Raises:
            NACError: what is missing or wrong.
        """
        known = dict(document)
        figures = checked(Sequence[Mapping[str, Any]], known.pop("figures", None), "figures")
        found = from_values(cls, known, figures=[_figure(figure) for figure in figures])
        _check_shapes(found)
        return found

    def save(self, folder: Path) -> Path:
        """Write `<kind>.json` into a folder, atomically."""
        return files.write_document(folder / f"{self.kind}.json", _FORMAT, self.to_dict())

    @classmethod
    def load(cls, path: Path) -> Finding:
        """Read what `save` wrote.

        Raises:
            FileError: the file is missing, damaged or newer than this package.
        """
        missing, again = f"there is no {path}", "Repeat the analysis"
        return files.read_document(path, _FORMAT, cls.from_dict, missing=missing, again=again)


def _check_shapes(found: Finding) -> None:
    """Raise if a row is longer or shorter than its table or figure."""
    for table in found.tables:
        pairs = [e for row in table.rows for e in row if isinstance(e, (list, tuple))]
        if any(len(row) != len(table.columns) for row in table.rows):
            raise NACError(f"a row of the table '{table.title}' has not one entry per column")
        if any(len(pair) != 2 for pair in pairs):
            raise NACError(f"an entry of the table '{table.title}' is no mean with its deviation")
    for figure in found.figures:
        whole = True
        if isinstance(figure, Lines):
            points = [point for line in figure.series for point in line.points]
            whole = bool(points) and all(len(p) in (2, 3) and p[0] is not None for p in points)
        elif isinstance(figure, BarGroups):
            whole = all(len(values) == len(figure.names) for _, values in figure.rows)
        elif isinstance(figure, Matrix):
            rows = [values for _, values in figure.rows]
            whole = len(figure.limits) == 2 and all(len(r) == len(figure.columns) for r in rows)
        else:
            panels = [panel for _, row in figure.rows for panel in row]
            whole = all(len(row) == len(figure.columns) for _, row in figure.rows) and all(
                len(p.inside) == len(p.outside) == len(p.edges) - 1 for p in panels
            )
        rows_there = isinstance(figure, Lines) or bool(figure.rows)
        if not whole or not rows_there:
            raise NACError(f"the figure '{figure.key}' has no rows, or rows of different lengths")


def _figure(document: Mapping[str, Any]) -> Figure:
    rest = {name: value for name, value in document.items() if name != "type"}
    kind = document.get("type")
    if kind not in list(_FIGURES):
        raise NACError(f"there is no figure of type {kind!r}")
    found: Figure = from_values(_FIGURES[kind], rest, "figures")
    return found
