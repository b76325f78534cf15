"""Figures of a finding, as data: lines, bars, distributions and matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Mapping, Optional, Sequence, Type, Union

import numpy as np

from nac_openood.errors import NACError
from nac_openood.structure import from_values

#: A name, and a value for every bar or column, or None.
NamedRow = tuple[str, Sequence[Optional[float]]]


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

    @property
    def is_whole(self) -> bool:
        """Whether there are points, each with an x."""
        points = [point for line in self.series for point in line.points]
        return bool(points) and all(len(p) in (2, 3) and p[0] is not None for p in points)


@dataclass(frozen=True)
class BarGroups(_Figure):
    """Horizontal bars: each row has a name and a value for every entry of `names`, or None.

    The axis goes from `origin` to `end` at least; the rows named in `ours` are highlighted.
    """

    type: ClassVar[str] = "bars"
    x_label: str
    names: Sequence[str]
    rows: Sequence[NamedRow]
    origin: float = 0.0
    end: float = 100.0
    ours: Sequence[str] = ()

    @property
    def is_whole(self) -> bool:
        """Whether there are rows, all of the right length."""
        return bool(self.rows) and all(len(row) == len(self.names) for _, row in self.rows)


@dataclass(frozen=True)
class Density:
    """Shares of ID and OOD samples between `edges`, `[bins]` each; `note` is written above."""

    edges: Sequence[float]
    inside: Sequence[float]
    outside: Sequence[float]
    note: str = ""

    @classmethod
    def of(
        cls, inside: np.ndarray, outside: np.ndarray, *, bins: int = 40, note: str = ""
    ) -> Density:
        """Bins over the middle 99 percent, so that a few outliers do not flatten the rest."""
        low, high = np.quantile(np.concatenate([inside, outside]), [0.005, 0.995])
        # values too close together for that many bins count as equal
        if not high - low > 1e-9 * max(abs(low), abs(high), 1e-9):
            half = max(0.01, abs(low) * 1e-3)
            low, high = low - half, high + half
        edges = np.linspace(low, high, bins + 1).tolist()
        return cls(edges, shares(inside, edges), shares(outside, edges), note)


def shares(values: np.ndarray, edges: Sequence[float]) -> list[float]:
    """The share of the values in each bin; values beyond the edges count in the outermost bins."""
    counts = np.histogram(values.clip(edges[0], edges[-1]), edges)[0]
    found: list[float] = (counts / max(1, counts.sum())).tolist()
    return found


@dataclass(frozen=True)
class Densities(_Figure):
    """A grid of distributions, ID against OOD: rows of (title, a panel per column)."""

    type: ClassVar[str] = "densities"
    x_label: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Density]]]
    inside: str = "ID"
    outside: str = "OOD"

    @property
    def is_whole(self) -> bool:
        """Whether there are rows, all of the right length, and so are the panels in them."""
        panels = [panel for _, row in self.rows for panel in row]
        equal = all(len(p.inside) == len(p.outside) == len(p.edges) - 1 for p in panels)
        return bool(self.rows) and equal and all(len(r) == len(self.columns) for _, r in self.rows)


@dataclass(frozen=True)
class Matrix(_Figure):
    """Numbers in colored squares: each row has a name and a value for every column, or None."""

    type: ClassVar[str] = "matrix"
    columns: Sequence[str]
    rows: Sequence[NamedRow]
    limits: Sequence[float] = (0.0, 1.0)

    @property
    def is_whole(self) -> bool:
        """Whether there are rows, all of the right length, and two limits."""
        equal = all(len(row) == len(self.columns) for _, row in self.rows)
        return bool(self.rows) and equal and len(self.limits) == 2


Figure = Union[Lines, BarGroups, Densities, Matrix]
_FIGURES: Mapping[str, Type[Any]] = {
    kind.type: kind for kind in (Lines, BarGroups, Densities, Matrix)
}


def figure_of(document: Mapping[str, Any]) -> Figure:
    """The figure that JSON values describe: its fields and its `type`.

    Raises:
        NACError: what is missing or wrong.
    """
    rest = dict(document)
    kind = rest.pop("type", None)
    if kind not in list(_FIGURES):
        raise NACError(f"there is no figure of type {kind!r}")
    found: Figure = from_values(_FIGURES[kind], rest, "figures")
    if not found.is_whole:
        raise NACError(f"the figure '{found.key}' has no rows, or rows of different lengths")
    return found
