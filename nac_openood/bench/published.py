"""The numbers the NAC paper prints on OOD detection, read from `tables/*.yml`.

A file is laid out like the table it holds. Every cell has coordinates on named axes (benchmark,
architecture, method, dataset, metric, ...), some from its row, some from its column, and some
`fixed` for the whole table; so tables of any shape are read alike. Numbers are percent unless a
metric says otherwise (`..._seconds`). Tables count as LaTeX counts them in the paper's source.
"""

from __future__ import annotations

import functools
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Iterator, Mapping, NamedTuple, Optional

import yaml

from nac_openood.errors import NACError

#: OpenOOD's name of each method -> the paper's, in the paper's order.
METHODS: Mapping[str, str] = {
    "openmax": "OpenMax", "msp": "MSP", "temp_scaling": "TempScale", "odin": "ODIN", "mds": "MDS",
    "mds_ensemble": "MDSEns", "rmds": "RMDS", "gram": "Gram", "ebo": "EBO", "opengan": "OpenGAN",
    "gradnorm": "GradNorm", "react": "ReAct", "mls": "MLS", "klm": "KLM", "vim": "VIM",
    "knn": "KNN", "dice": "DICE", "rankfeat": "RankFeat", "ash": "ASH", "she": "SHE", "gen": "GEN",
    "nac": "NAC-UE",
}  # fmt: skip

_CIFAR_FAR = ("mnist", "svhn", "texture", "places365")
_IMAGENET = {"nearood": ("ssb_hard", "ninco"), "farood": ("inaturalist", "textures", "openimage_o")}

#: Benchmark -> average -> the sets it is over, as OpenOOD names and orders them.
GROUPS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "cifar10": {"nearood": ("cifar100", "tin"), "farood": _CIFAR_FAR},
    "cifar100": {"nearood": ("cifar10", "tin"), "farood": _CIFAR_FAR},
    "imagenet200": _IMAGENET,
    "imagenet": _IMAGENET,
}

#: The detection metrics the paper prints.
METRICS = ("FPR@95", "AUROC")

_TABLES = Path(__file__).parent / "tables"
_RESULT_AXES = ("benchmark", "architecture", "method", "dataset", "metric")
_MEAN_OF_BACKBONES = "average"


@dataclass(frozen=True)
class Value:
    """A printed number.

    Args:
        mean: the number.
        std: what is printed behind the plus-minus sign, or None.
        decimals: how many the mean was printed with.
        derived: True for a mean over sets that the paper does not print itself.
    """

    mean: float
    std: Optional[float] = None
    decimals: int = 2
    derived: bool = False

    @classmethod
    def parse(cls, text: str) -> Optional[Value]:
        """Read `23.33±4.67` or `23.33`; the paper's slash means that there is no number."""
        if text == "/":
            return None
        mean, _, std = text.partition("±")
        decimals = len(mean.partition(".")[2])
        return cls(float(mean), float(std) if std else None, decimals)


class Cell(NamedTuple):
    """A value and where it stands: axis -> coordinate."""

    at: Mapping[str, str]
    value: Optional[Value]


@dataclass(frozen=True)
class Table:
    """A table of the paper.

    Args:
        name: as printed, e.g. `Table 20`.
        title: what it shows.
        row_axes: what tells its rows apart.
        column_axes: what tells its columns apart.
        columns: coordinates on `column_axes`, a tuple a column.
        rows: coordinates on `row_axes` -> a value a column, None where nothing is printed.
        fixed: coordinates that all cells share.
        default: where an axis beyond the five of `published` has the coordinate given here, the
            cell shows the method as the paper compares it to others.
        note: what a reader should know.
    """

    name: str
    title: str
    row_axes: tuple[str, ...]
    column_axes: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    rows: Mapping[tuple[str, ...], tuple[Optional[Value], ...]]
    fixed: Mapping[str, str] = field(default_factory=dict)
    default: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def benchmark(self) -> Optional[str]:
        """The benchmark, or None where rows or columns name several."""
        return self.fixed.get("benchmark")

    @property
    def architecture(self) -> Optional[str]:
        """The architecture, or None where rows or columns name several."""
        return self.fixed.get("architecture")

    def cells(self) -> Iterator[Cell]:
        """All cells, row by row."""
        for row, values in self.rows.items():
            shared = {**self.fixed, **dict(zip(self.row_axes, row))}
            for column, value in zip(self.columns, values):
                yield Cell({**shared, **dict(zip(self.column_axes, column))}, value)

    def value(self, **at: str) -> Optional[Value]:
        """The value at these coordinates, which must single out one cell."""
        found = [cell for cell in self.cells() if at.items() <= cell.at.items()]
        if len(found) != 1:
            axes = [*self.fixed, *self.row_axes, *self.column_axes]
            raise NACError(
                f"expected coordinates of one cell of {self.name}, got {at}, which fits "
                f"{len(found)}. Its axes are {axes}."
            )
        return found[0].value


@functools.cache
def tables() -> Mapping[str, Table]:
    """All tables by name, in the paper's order."""
    files = sorted(_TABLES.glob("table_*.yml"), key=lambda path: int(path.stem.split("_")[1]))
    found = [read_table(path) for path in files]
    return MappingProxyType({table.name: table for table in found})


def table(name: str) -> Table:
    """The table of that name, or an error that lists what there is."""
    if name not in tables():
        raise NACError(f"there is no '{name}' here; there are {list(tables())}.")
    return tables()[name]


def read_table(path: Path) -> Table:
    """Read one file.

    Raises:
        NACError: naming the file, where rows and columns do not fit together.
    """
    # all scalars stay text: 97.9 and 97.90 are printed with different precision
    document: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    try:
        columns = tuple(zip(*document["columns"].values()))
        widths = {len(names) for names in document["columns"].values()}
        rows = {
            tuple(key.split()): tuple(map(Value.parse, texts))
            for key, texts in document["values"].items()
        }
        for key, values in rows.items():
            if {len(values)} != widths or len(key) != len(document["rows"]):
                raise ValueError(f"row {' '.join(key)!r} does not fit the columns or row axes")
        return Table(
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
        raise NACError(f"{path} is not a table as described in {__name__}: {error!r}.") from error


def benchmarks() -> list[tuple[str, str]]:
    """The (benchmark, architecture) pairs for which the paper compares methods."""
    pairs = {(at["benchmark"], at["architecture"]): None for at, _ in _results()}
    return sorted(pair for pair in pairs if pair[1] != _MEAN_OF_BACKBONES)


def published(benchmark: str, architecture: str) -> dict[str, dict[str, dict[str, Value]]]:
    """What the paper prints: method -> OOD set, `nearood` or `farood` -> metric -> value.

    Args:
        benchmark: OpenOOD's name of the in-distribution data, e.g. `cifar10`.
        architecture: e.g. `resnet18_32x32`, `resnet50`, `vit_b_16`.

    Returns:
        All methods of `METHODS`, in that order; one without numbers (OpenGAN on ImageNet) is
        empty. An average that is not printed is made where all its sets are, and `derived`.
    """
    if (benchmark, architecture) not in benchmarks():
        known = ", ".join(f"{b} with {a}" for b, a in benchmarks())
        raise NACError(
            f"the paper has no results for {benchmark} with {architecture}; it has: {known}."
        )
    found: dict[str, dict[str, dict[str, Value]]] = {method: {} for method in METHODS}
    for at, value in _results():
        if (at["benchmark"], at["architecture"]) == (benchmark, architecture):
            sets = found[at["method"]].setdefault(at["dataset"], {})
            # of a number that several tables print, the one with its std says most
            if at["metric"] not in sets or sets[at["metric"]].std is None:
                sets[at["metric"]] = value
    for sets in found.values():
        _add_averages(sets, GROUPS[benchmark])
    return found


def _results() -> Iterator[tuple[Mapping[str, str], Value]]:
    """The cells that compare methods, settings at their default."""
    for each in tables().values():
        for at, value in each.cells():
            extra = {k: v for k, v in at.items() if k not in _RESULT_AXES}
            comparable = set(_RESULT_AXES) <= set(at) and at["metric"] in METRICS
            if value is not None and comparable and extra == each.default:
                yield at, value


def _add_averages(sets: dict[str, dict[str, Value]], groups: Mapping[str, tuple[str, ...]]) -> None:
    for average, names in groups.items():
        for metric in METRICS:
            members = [sets[name][metric] for name in names if metric in sets.get(name, {})]
            if len(members) == len(names) and metric not in sets.get(average, {}):
                mean = statistics.fmean(value.mean for value in members)
                sets.setdefault(average, {})[metric] = Value(mean, derived=True)
