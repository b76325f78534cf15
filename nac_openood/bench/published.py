"""The numbers the NAC paper prints on OOD detection, read from `tables/*.yml`.

Numbers are percent unless a metric says otherwise (`..._seconds`). The paper's source has no
numbers of tables: they are those LaTeX gives them, in order of appearance. Tables on OOD
generalization (8, 9, 13, 18, 23 to 26) are not here.
"""

from __future__ import annotations

import functools
import statistics
from pathlib import Path
from types import MappingProxyType
from typing import Iterator, Mapping

from nac_openood.bench.imglist import BENCHMARKS
from nac_openood.bench.methods import METHODS
from nac_openood.bench.printed import Table, Value, read_table
from nac_openood.errors import NACError

#: Benchmark -> average -> the sets it is over, as OpenOOD names and orders them.
GROUPS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    row.name: {"nearood": row.near, "farood": row.far} for row in BENCHMARKS.values()
}

#: The detection metrics the paper prints.
METRICS = ("FPR@95", "AUROC")

_TABLES = Path(__file__).parent / "tables"
_RESULT_AXES = ("benchmark", "architecture", "method", "dataset", "metric")
_MEAN_OF_BACKBONES = "average"


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
    for by_set in found.values():
        _add_averages(by_set, GROUPS[benchmark])
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
