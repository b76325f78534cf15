"""The numbers that the NAC paper prints, read from `tables/*.yml`, and measured ones beside them.

OpenOOD's leaderboard is one more such table.

They are percent unless the metric has a unit (`..._seconds`). Tables are numbered as LaTeX
numbers them. `published` is about OOD detection, `published_choice` about choosing checkpoints
(NAC-ME).

A file is laid out like its table. Every cell has coordinates on named axes (benchmark,
architecture, method, dataset, metric, ...): some from its row, some from its column, and some
`fixed` for the whole table.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Collection, Iterator, Mapping, Optional, Sequence

import yaml

from nac_openood.benchmark.methods.table import METHODS
from nac_openood.errors import NACError
from nac_openood.sources.sets import BENCHMARKS

#: The methods of the paper by name, in its order, with the titles that it prints.
PRINTED_METHODS: Mapping[str, str] = {
    method.name: method.paper for method in METHODS.values() if method.paper is not None
}

#: The detection metrics that the paper prints.
PRINTED_METRICS = ("FPR@95", "AUROC")

#: The OOD sets behind each average, by benchmark, in OpenOOD's order.
GROUPS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    row.name: {"nearood": row.near, "farood": row.far} for row in BENCHMARKS.values()
}

#: Whose numbers can be put beside measured ones.
SOURCES = NAC_PAPER, LEADERBOARD = "paper", "leaderboard"

_TABLES = Path(__file__).parent / "tables"
_RESULT_AXES = ("benchmark", "architecture", "method", "dataset", "metric")
_MEAN_OF_BACKBONES = "average"
_Number = Optional[float]


@dataclass(frozen=True)
class PrintedValue:
    """A printed number.

    Args:
        mean: the number.
        std: the number after the plus-minus sign, or None.
        decimals: the number of decimals of the mean.
        derived: True for a mean over datasets that the paper does not print itself.
    """

    mean: float
    std: _Number = None
    decimals: int = 2
    derived: bool = False

    @classmethod
    def parse(cls, text: str) -> Optional[PrintedValue]:
        """Read `23.33±4.67` or `23.33`; None for the paper's slash, which means no number."""
        if text == "/":
            return None
        mean, _, std = text.partition("±")
        decimals = len(mean.partition(".")[2])
        return cls(float(mean), float(std) if std else None, decimals)


#: Printed values by three of their coordinates.
Published = dict[str, dict[str, dict[str, PrintedValue]]]


@dataclass(frozen=True)
class PrintedTable:
    """A table of the paper.

    Args:
        name: as printed, e.g. `Table 20`.
        title: what it shows.
        row_axes: the axes of its rows.
        columns: the coordinates of every column.
        rows: a value per column by coordinates on `row_axes`, None where nothing is printed.
        fixed: coordinates that all cells share.
        default: the settings with which the paper compares a method to others: coordinates on
            axes beyond the five of `published`.
        note: a remark for readers.
    """

    name: str
    title: str
    row_axes: Sequence[str]
    columns: Sequence[Mapping[str, str]]
    rows: Mapping[tuple[str, ...], Sequence[Optional[PrintedValue]]]
    fixed: Mapping[str, str] = field(default_factory=dict)
    default: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @classmethod
    def read(cls, path: Path) -> PrintedTable:
        """Read one file."""
        # numbers stay text, since 97.9 and 97.90 have different precision
        content: dict[str, Any] = yaml.load(path.read_text("utf-8"), Loader=yaml.BaseLoader)
        columns, values = content.pop("columns"), content.pop("values")
        return cls(
            row_axes=content.pop("rows"),
            columns=[dict(zip(columns, at)) for at in zip(*columns.values())],
            rows={tuple(at.split()): [*map(PrintedValue.parse, row)] for at, row in values.items()},
            **content,
        )

    def cells(self) -> Iterator[tuple[dict[str, str], Optional[PrintedValue]]]:
        """The coordinates by axis and the value of all cells, row by row."""
        for row, values in self.rows.items():
            shared = {**self.fixed, **dict(zip(self.row_axes, row))}
            for column, value in zip(self.columns, values):
                yield {**shared, **column}, value

    def value(self, **at: str) -> Optional[PrintedValue]:
        """The value at these coordinates, which must identify exactly one cell."""
        found = [value for cell, value in self.cells() if at.items() <= cell.items()]
        if len(found) != 1:
            raise NACError(
                f"expected the coordinates of one cell of {self.name}; {at} fit {len(found)}. Its "
                f"axes are {list(next(self.cells())[0])}."
            )
        return found[0]


def _beside(
    printed: Optional[PrintedValue], measured: tuple[_Number, _Number], spread: str
) -> dict[str, _Number]:
    """A measured number and its spread ("std" or "error"), the printed ones, and the difference."""
    mean, std = (None, None) if printed is None else (printed.mean, printed.std)
    return {
        "measured": measured[0], f"measured_{spread}": measured[1],
        "published": mean, f"published_{spread}": std,
        "difference": None if mean is None or measured[0] is None else measured[0] - mean,
    }  # fmt: skip


@functools.cache
def tables() -> Mapping[str, PrintedTable]:
    """All tables by name, in the paper's order."""
    files = sorted(_TABLES.glob("table_*.yml"), key=lambda path: int(path.stem.split("_")[1]))
    return {table.name: table for table in map(PrintedTable.read, files)}


def table(name: str) -> PrintedTable:
    """The table of that name."""
    return tables()[name]


@functools.cache
def leaderboard() -> PrintedTable:
    """OpenOOD's leaderboard: AUROC of post-hoc methods, near and far."""
    return PrintedTable.read(_TABLES / "leaderboard.yml")


def benchmarks(source: str = NAC_PAPER) -> list[tuple[str, str]]:
    """The (benchmark, architecture) pairs for which a source compares methods."""
    pairs = {(at["benchmark"], at["architecture"]) for at, _ in _results(source)}
    return sorted(pair for pair in pairs if pair[1] != _MEAN_OF_BACKBONES)


def published(benchmark: str, architecture: str, source: str = NAC_PAPER) -> Published:
    """Published numbers by method, by OOD set (or `nearood` or `farood`), and by metric.

    Args:
        benchmark: OpenOOD's name of the in-distribution data, e.g. `cifar10`.
        architecture: e.g. `resnet18_32x32`, `resnet50`, `vit_b_16`.
        source: one of `SOURCES`.

    Returns:
        All methods of `PRINTED_METHODS`, in that order, then others; one without numbers
        (OpenGAN on ImageNet) is empty. An average that is not printed is computed if all its sets
        are, and `derived`.
    """
    if (benchmark, architecture) not in benchmarks(source):
        known = ", ".join(f"{b} with {a}" for b, a in benchmarks(source))
        raise NACError(
            f"the {source} has no results for {benchmark} with {architecture}; it has: {known}."
        )
    found: Published = {method: {} for method in PRINTED_METHODS}
    for at, value in _results(source):
        if (at["benchmark"], at["architecture"]) == (benchmark, architecture):
            sets = found.setdefault(at["method"], {}).setdefault(at["dataset"], {})
            # several tables print the same number, some without its standard deviation
            if at["metric"] not in sets or sets[at["metric"]].std is None:
                sets[at["metric"]] = value
    groups = GROUPS[benchmark].items()
    for by_set, (average, names), m in itertools.product(found.values(), groups, PRINTED_METRICS):
        parts = [by_set[name][m] for name in names if m in by_set.get(name, {})]
        if len(parts) == len(names) and m not in by_set.get(average, {}):
            mean = statistics.fmean(value.mean for value in parts)
            by_set.setdefault(average, {})[m] = PrintedValue(mean, derived=True)
    return found


def _results(source: str) -> Iterator[tuple[Mapping[str, str], PrintedValue]]:
    """The cells that compare methods, with default settings."""
    for each in [leaderboard()] if source == LEADERBOARD else tables().values():
        for at, value in each.cells():
            extra = {k: v for k, v in at.items() if k not in _RESULT_AXES}
            comparable = set(_RESULT_AXES) <= set(at) and at["metric"] in PRINTED_METRICS
            if value is not None and comparable and extra == each.default:
                yield at, value


def against(
    measured: Callable[[str, str, str], Optional[tuple[float, _Number]]],
    methods: Collection[str],
    datasets: Sequence[str],
    benchmark: str,
    architecture: str,
    source: str = NAC_PAPER,
) -> list[dict[str, Any]]:
    """Put measured numbers beside published ones.

    Args:
        measured: mean and standard deviation (or None) in percent, of a method, an OOD set (or
            `nearood` or `farood`) and a metric; None if there are none.
        methods: the methods to list.
        datasets: the sets that were measured.
        benchmark: OpenOOD's name of the in-distribution data.
        architecture: e.g. `resnet18_32x32`.
        source: one of `SOURCES`. The leaderboard has AUROC only, near and far.

    Returns:
        A dict per number that was measured or published: `source`, `method`, `dataset`, `metric`,
        `measured` and `measured_std` (mean and standard deviation over runs), `published`,
        `published_std`, `difference` (measured minus published) and `derived` (whether the
        published number is an average that the paper does not print). Numbers are percent, or None.
        The paper's methods come first, in its order, near sets and their average before far ones,
        FPR@95 before AUROC.

    Raises:
        NACError: there are no such results; the message lists those that there are.
    """
    printed = published(benchmark, architecture, source)
    metrics: Sequence[str] = PRINTED_METRICS
    sets = [n for average, names in GROUPS[benchmark].items() for n in (*names, average)]
    if source == LEADERBOARD:
        sets, datasets, metrics = list(GROUPS[benchmark]), (), ("AUROC",)
    cells = itertools.product(
        [method for method in dict.fromkeys((*PRINTED_METHODS, *methods)) if method in methods],
        dict.fromkeys((*sets, *datasets)), metrics,
    )  # fmt: skip
    rows = []
    for method, dataset, metric in cells:
        value = printed.get(method, {}).get(dataset, {}).get(metric)
        found = measured(method, dataset, metric)
        if found is not None or value is not None:
            at = {"source": source, "method": method, "dataset": dataset, "metric": metric}
            derived = value is not None and value.derived
            numbers = _beside(value, found or (None, None), "std")
            rows.append({**at, **numbers, "derived": derived})
    return rows


# ---- choosing checkpoints

#: The tables by dataset.
GENERALIZATION_TABLES: Mapping[str, str] = {
    "vlcs": "Table 23", "pacs": "Table 24", "officehome": "Table 25", "terraincognita": "Table 26",
}  # fmt: skip
#: The paper's networks, by their names in it and in timm.
_ARCHITECTURES = {name: name for name in ("resnet18", "resnet50", "vit_t_16", "vit_b_16")}
_ARCHITECTURES["timm:vit_tiny_patch16_224"] = "vit_t_16"
_ARCHITECTURES["timm:vit_base_patch16_224"] = "vit_b_16"

#: (mean, standard error or None) by target domain (or `average`), criterion and metric.
MeasuredChoice = Mapping[str, Mapping[str, Mapping[str, tuple[_Number, _Number]]]]


def published_choice(dataset: str, architecture: str) -> Published:
    """The paper's RC and ACC by target domain (and `average`), criterion and metric.

    Args:
        dataset: `pacs`, `vlcs`, `officehome` or `terraincognita`.
        architecture: `resnet18`, `resnet50`, `vit_t_16` or `vit_b_16`, or the `arch` of such a
            network. Others are compared with ResNet-18, the smallest network of the paper.
    """
    if dataset not in GENERALIZATION_TABLES:
        known = ", ".join(GENERALIZATION_TABLES)
        raise NACError(f"the paper does not choose checkpoints on '{dataset}', only on {known}.")
    found: Published = {}
    for at, value in table(GENERALIZATION_TABLES[dataset]).cells():
        if at["architecture"] == printed_architecture(architecture) and value is not None:
            by_domain = found.setdefault(at["domain"], {})
            by_domain.setdefault(at["criterion"], {})[at["metric"]] = value
    return found


def printed_architecture(architecture: str) -> str:
    """The paper's name of the network to compare `architecture` with."""
    return _ARCHITECTURES.get(architecture, "resnet18")


def against_choice(
    measured: MeasuredChoice, dataset: str, architecture: str
) -> list[dict[str, Any]]:
    """Put measured numbers beside those of the paper, in the order of `measured`.

    Args:
        measured: times 100, as the paper prints them; None where a value is undefined.
        dataset: as in `published_choice`.
        architecture: as in `published_choice`.

    Returns:
        A dict per number, with its domain, criterion and metric; None if there is no number.
    """
    printed = published_choice(dataset, architecture)
    rows = []
    for domain, criteria in measured.items():
        # DomainBed's folder `Real World` is `real_world` in the tables
        values = printed.get(domain.strip().lower().replace(" ", "_"), {})
        for criterion, metrics in criteria.items():
            for metric, found in metrics.items():
                at = {"domain": domain, "criterion": criterion, "metric": metric}
                value = values.get(criterion, {}).get(metric)
                rows.append({**at, **_beside(value, found, "error")})
    return rows
