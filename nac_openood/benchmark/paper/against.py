"""Measured numbers beside those of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Iterator, Mapping, Optional, Sequence

from nac_openood.benchmark.paper.printed import with_printed
from nac_openood.benchmark.paper.published import (
    GROUPS,
    PRINTED_METHODS,
    PRINTED_METRICS,
    published,
)

#: (mean, std or None) in percent, by method, by OOD set (or `nearood` or `farood`), and by metric.
MeasuredMetrics = Mapping[str, Mapping[str, Mapping[str, tuple[float, Optional[float]]]]]


@dataclass(frozen=True)
class Against:
    """One number, measured and published, in percent; None if there is none.

    Args:
        method: the method's name.
        dataset: name of the OOD set, or `nearood` or `farood` for an average.
        metric: `FPR@95`, `AUROC`, or another one that was measured.
        measured: mean over runs.
        measured_std: standard deviation over runs.
        published: the paper's number.
        published_std: the paper's standard deviation.
        difference: measured minus published.
        derived: whether the published number is an average that the paper does not print.
    """

    method: str
    dataset: str
    metric: str
    measured: Optional[float]
    measured_std: Optional[float]
    published: Optional[float]
    published_std: Optional[float]
    difference: Optional[float]
    derived: bool = False


def against(
    measured: MeasuredMetrics,
    benchmark: str,
    architecture: str,
    *,
    methods: Optional[Sequence[str]] = None,
) -> list[Against]:
    """Put measured numbers beside those of the paper.

    Args:
        measured: in percent.
        benchmark: OpenOOD's name of the in-distribution data.
        architecture: e.g. `resnet18_32x32`.
        methods: the methods to list; None lists all that were measured or published.

    Returns:
        One row per number that was measured or published. The paper's methods come first, in its
        order, near sets and their average before far ones, FPR@95 before AUROC.

    Raises:
        NACError: the paper has no such results; the message lists those that it has.
    """
    printed = published(benchmark, architecture)
    sets = [n for average, names in GROUPS[benchmark].items() for n in (*names, average)]
    rows = []
    for method in _ordered(PRINTED_METHODS, measured):
        if methods is None or method in methods:
            ours, theirs = measured.get(method, {}), printed.get(method, {})
            for dataset in _ordered(sets, ours):
                mine, paper = ours.get(dataset, {}), theirs.get(dataset, {})
                for metric in _ordered(PRINTED_METRICS, mine):
                    if metric in mine or metric in paper:
                        value = paper.get(metric)
                        mean, std = mine.get(metric, (None, None))
                        numbers = with_printed(mean, std, value)
                        derived = value is not None and value.derived
                        rows.append(Against(method, dataset, metric, *numbers, derived))
    return rows


def _ordered(known: Iterable[str], given: Iterable[str]) -> Iterator[str]:
    """The known names, then the other given ones, each in their order."""
    yield from dict.fromkeys((*known, *given))
