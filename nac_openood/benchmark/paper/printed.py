"""A table of the paper as data, and the YAML that it is read from.

A file is laid out like its table. Every cell has coordinates on named axes (benchmark,
architecture, method, dataset, metric, ...): some from its row, some from its column, and some
`fixed` for the whole table. So tables of all shapes are read in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Iterator, Mapping, NamedTuple, Optional

import yaml

from nac_openood.errors import NACError


@dataclass(frozen=True)
class PrintedValue:
    """A printed number.

    Args:
        mean: the number.
        std: the number behind the plus-minus sign, or None.
        decimals: the number of decimals of the mean.
        derived: True for a mean over datasets that the paper does not print itself.
    """

    mean: float
    std: Optional[float] = None
    decimals: int = 2
    derived: bool = False

    @classmethod
    def parse(cls, text: str) -> Optional[PrintedValue]:
        """Read `23.33±4.67` or `23.33`; for the paper's slash there is no number."""
        if text == "/":
            return None
        mean, _, std = text.partition("±")
        decimals = len(mean.partition(".")[2])
        return cls(float(mean), float(std) if std else None, decimals)


_Number = Optional[float]


def with_printed(
    mean: _Number, spread: _Number, printed: Optional[PrintedValue]
) -> tuple[_Number, _Number, _Number, _Number, _Number]:
    """A measured number and its deviation, the printed ones, and measured minus printed."""
    if printed is None:
        return mean, spread, None, None, None
    difference = None if mean is None else mean - printed.mean
    return mean, spread, printed.mean, printed.std, difference


class PrintedCell(NamedTuple):
    """A value and its coordinates by axis."""

    at: Mapping[str, str]
    value: Optional[PrintedValue]


@dataclass(frozen=True)
class PrintedTable:
    """A table of the paper.

    Args:
        name: as printed, e.g. `Table 20`.
        title: what it shows.
        row_axes: the axes of its rows.
        column_axes: the axes of its columns.
        columns: coordinates on `column_axes`, one tuple per column.
        rows: a value per column by coordinates on `row_axes`, None where nothing is printed.
        fixed: coordinates that all cells share.
        default: the settings with which the paper compares a method to others: coordinates on
            axes beyond the five of `published`.
        note: a remark for readers.
    """

    name: str
    title: str
    row_axes: tuple[str, ...]
    column_axes: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    rows: Mapping[tuple[str, ...], tuple[Optional[PrintedValue], ...]]
    fixed: Mapping[str, str] = field(default_factory=dict)
    default: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def cells(self) -> Iterator[PrintedCell]:
        """All cells, row by row."""
        for row, values in self.rows.items():
            shared = {**self.fixed, **dict(zip(self.row_axes, row))}
            for column, value in zip(self.columns, values):
                yield PrintedCell({**shared, **dict(zip(self.column_axes, column))}, value)

    def value(self, **at: str) -> Optional[PrintedValue]:
        """The value at these coordinates, which must belong to exactly one cell."""
        found = [cell for cell in self.cells() if at.items() <= cell.at.items()]
        if len(found) != 1:
            axes = [*self.fixed, *self.row_axes, *self.column_axes]
            raise NACError(
                f"expected the coordinates of one cell of {self.name}; {at} fit {len(found)}. Its "
                f"axes are {axes}."
            )
        return found[0].value


def read_table(path: Path) -> PrintedTable:
    """Read one file.

    Raises:
        NACError: naming the file, if rows and columns do not fit together.
    """
    # numbers stay text, since 97.9 and 97.90 have different precision
    document: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    try:
        columns = tuple(zip(*document["columns"].values()))
        widths = {len(names) for names in document["columns"].values()}
        rows = {
            tuple(key.split()): tuple(map(PrintedValue.parse, texts))
            for key, texts in document["values"].items()
        }
        for key, values in rows.items():
            if {len(values)} != widths or len(key) != len(document["rows"]):
                raise ValueError(f"row {' '.join(key)!r} does not fit the columns or row axes")
        return PrintedTable(
            name=document["name"],
            title=document["title"],
            row_axes=tuple(document["rows"]),
            column_axes=tuple(document["columns"]),
            columns=columns,
            rows=MappingProxyType(rows),
            fixed=MappingProxyType(document.get("fixed", {})),
            default=MappingProxyType(document.get("default", {})),
            note=document.get("note", ""),
        )
    except (KeyError, ValueError, AttributeError) as error:
        raise NACError(f"{path} is not a table as {__name__} describes it: {error!r}.") from error
