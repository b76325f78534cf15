"""Measured numbers beside the paper's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Iterator, Mapping, Optional, Sequence

from nac_openood.bench.methods import METHODS
from nac_openood.bench.printed import Value
from nac_openood.bench.published import GROUPS, METRICS, published

#: Method -> OOD set, `nearood` or `farood` -> metric -> (mean, std or None), in percent.
Measured = Mapping[str, Mapping[str, Mapping[str, tuple[float, Optional[float]]]]]

_HEAD = ("method", "dataset", "metric", "measured", "published", "difference")
_NOTHING = "-"


@dataclass(frozen=True)
class Against:
    """One number, measured and published, in percent; None where there is none.

    Args:
        method: OpenOOD's name.
        dataset: OpenOOD's name of the OOD set, or `nearood` or `farood` for an average.
        metric: `FPR@95`, `AUROC`, or another one that was measured.
        measured: the mean over runs.
        measured_std: over runs.
        published: the paper's number.
        published_std: the paper's.
        difference: measured minus published.
        derived: whether the published average is ours, over numbers that the paper prints.
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
    measured: Measured,
    benchmark: str,
    architecture: str,
    *,
    methods: Optional[Sequence[str]] = None,
) -> list[Against]:
    """Lay measured numbers beside the paper's, whichever of the two exists.

    Args:
        measured: in percent.
        benchmark: OpenOOD's name of the in-distribution data.
        architecture: e.g. `resnet18_32x32`.
        methods: which to list; None lists every method of either side.

    Returns:
        A row a number, in the paper's order of methods (others behind, as they came), near sets
        and their average before far ones, FPR@95 before AUROC.

    Raises:
        NACError: saying what there is, where the paper has no such results.
    """
    printed = published(benchmark, architecture)
    sets = [n for average, names in GROUPS[benchmark].items() for n in (*names, average)]
    rows = []
    for method in _ordered(METHODS, measured):
        if methods is None or method in methods:
            ours, theirs = measured.get(method, {}), printed.get(method, {})
            for dataset in _ordered(sets, ours):
                mine, paper = ours.get(dataset, {}), theirs.get(dataset, {})
                for metric in _ordered(METRICS, mine):
                    if metric in mine or metric in paper:
                        row = _row(mine.get(metric), paper.get(metric), method, dataset, metric)
                        rows.append(row)
    return rows


def to_markdown(rows: Sequence[Against]) -> str:
    """The rows as a Markdown table, with a line below it where an average is not the paper's."""
    lines = [list(_HEAD), ["---"] * 3 + ["---:"] * 3]
    for row in rows:
        theirs = _text(row.published, row.published_std) + ("*" if row.derived else "")
        difference = _NOTHING if row.difference is None else f"{row.difference:+.2f}"
        ours = _text(row.measured, row.measured_std)
        lines.append([row.method, row.dataset, row.metric, ours, theirs, difference])
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    if any(row.derived for row in rows):
        text += "\n\\* the mean of the numbers that the paper prints; it prints no mean itself\n"
    return text


def _ordered(known: Iterable[str], given: Iterable[str]) -> Iterator[str]:
    """The known names in their order, then the other given ones in theirs."""
    yield from dict.fromkeys((*known, *given))


def _row(
    ours: Optional[tuple[float, Optional[float]]],
    theirs: Optional[Value],
    method: str,
    dataset: str,
    metric: str,
) -> Against:
    mean, std = ours or (None, None)
    paper = theirs.mean if theirs else None
    return Against(
        method=method,
        dataset=dataset,
        metric=metric,
        measured=mean,
        measured_std=std,
        published=paper,
        published_std=theirs.std if theirs else None,
        difference=None if mean is None or paper is None else mean - paper,
        derived=theirs is not None and theirs.derived,
    )


def _text(mean: Optional[float], std: Optional[float]) -> str:
    if mean is None:
        return _NOTHING
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"
