"""The numbers that the NAC paper prints, read from `tables/*.yml`.

They are percent unless the metric has a unit (`..._seconds`). Tables are numbered as LaTeX
numbers them. `published` is about OOD detection; for the tables on OOD generalization (8, 9, 13,
18, 23 to 26) see `generalization.py`.
"""

from __future__ import annotations

import functools
import statistics
from pathlib import Path
from types import MappingProxyType
from typing import Iterator, Mapping

from nac_openood.benchmark.methods.table import METHODS
from nac_openood.benchmark.paper.printed import PrintedTable, PrintedValue, read_table
from nac_openood.errors import NACError
from nac_openood.sources.imglist import BENCHMARKS

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

_TABLES = Path(__file__).parent / "tables"
_RESULT_AXES = ("benchmark", "architecture", "method", "dataset", "metric")
_MEAN_OF_BACKBONES = "average"


@functools.cache
def tables() -> Mapping[str, PrintedTable]:
    """All tables by name, in the paper's order."""
    files = sorted(_TABLES.glob("table_*.yml"), key=lambda path: int(path.stem.split("_")[1]))
    found = [read_table(path) for path in files]
    return MappingProxyType({table.name: table for table in found})


def table(name: str) -> PrintedTable:
    """The table of that name, or an error that lists the known ones."""
    if name not in tables():
        raise NACError(f"unknown table '{name}'; expected one of {', '.join(tables())}.")
    return tables()[name]


def benchmarks() -> list[tuple[str, str]]:
    """The (benchmark, architecture) pairs for which the paper compares methods."""
    pairs = {(at["benchmark"], at["architecture"]): None for at, _ in _results()}
    return sorted(pair for pair in pairs if pair[1] != _MEAN_OF_BACKBONES)


def published(benchmark: str, architecture: str) -> dict[str, dict[str, dict[str, PrintedValue]]]:
    """The paper's numbers by method, by OOD set (or `nearood` or `farood`), and by metric.

    Args:
        benchmark: OpenOOD's name of the in-distribution data, e.g. `cifar10`.
        architecture: e.g. `resnet18_32x32`, `resnet50`, `vit_b_16`.

    Returns:
        All methods of `PRINTED_METHODS`, in that order; one without numbers (OpenGAN on ImageNet)
        is empty. An average that is not printed is computed if all its sets are, and `derived`.
    """
    if (benchmark, architecture) not in benchmarks():
        known = ", ".join(f"{b} with {a}" for b, a in benchmarks())
        raise NACError(
            f"the paper has no results for {benchmark} with {architecture}; it has: {known}."
        )
    found: dict[str, dict[str, dict[str, PrintedValue]]] = {
        method: {} for method in PRINTED_METHODS
    }
    for at, value in _results():
        if (at["benchmark"], at["architecture"]) == (benchmark, architecture):
            sets = found[at["method"]].setdefault(at["dataset"], {})
            # several tables print the same number, some without its standard deviation
            if at["metric"] not in sets or sets[at["metric"]].std is None:
                sets[at["metric"]] = value
    for by_set in found.values():
        _add_averages(by_set, GROUPS[benchmark])
    return found


def _results() -> Iterator[tuple[Mapping[str, str], PrintedValue]]:
    """The cells that compare methods, with default settings."""
    for each in tables().values():
        for at, value in each.cells():
            extra = {k: v for k, v in at.items() if k not in _RESULT_AXES}
            comparable = set(_RESULT_AXES) <= set(at) and at["metric"] in PRINTED_METRICS
            if value is not None and comparable and extra == each.default:
                yield at, value


def _add_averages(
    sets: dict[str, dict[str, PrintedValue]], groups: Mapping[str, tuple[str, ...]]
) -> None:
    for average, names in groups.items():
        for metric in PRINTED_METRICS:
            members = [sets[name][metric] for name in names if metric in sets.get(name, {})]
            if len(members) == len(names) and metric not in sets.get(average, {}):
                mean = statistics.fmean(value.mean for value in members)
                sets.setdefault(average, {})[metric] = PrintedValue(mean, derived=True)
