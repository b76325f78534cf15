"""The tables of results: near-OOD and far-OOD means, then every dataset."""

from __future__ import annotations

from typing import Optional, Sequence

from nac_openood.benchmark.run.results import GROUP_NAMES, Results
from nac_openood.report.blocks import Block, Bullets, Cell, Column, Line, Section, Table
from nac_openood.report.order import Standing, measured_groups, ood_sets
from nac_openood.report.words import NOTHING, SHOWN, Metric, capital, set_title

_NAME = Column("Method", "name")


def ranking(results: Results, order: Sequence[Standing]) -> Section:
    """Means, times and implementations; methods without a result come last."""
    partly = [
        f"{s.title}: {s.runs_ok} of {s.runs} runs succeeded ({s.error})"
        for s in order
        if s.status == "ok" and s.runs_ok < s.runs
    ]
    spread = ", mean \u00b1 standard deviation over checkpoints" if len(results.runs) > 1 else ""
    text = (
        f"Percent{spread}. Methods are ordered by near-OOD AUROC, or by far-OOD AUROC if there is "
        "no near-OOD."
    )
    blocks: list[Block] = [
        text,
        *metric_notes(order),
        ranking_table(results, order),
        Bullets(partly),
    ]
    return Section("ranking", "Ranking", blocks)


def ranking_table(results: Results, order: Sequence[Standing]) -> Table:
    """One row for each method, best first."""
    groups, metrics = measured_groups(results), shown_metrics(order)
    columns = [
        Column("#"),
        _NAME,
        *(_column(m, GROUP_NAMES[g]) for g in groups for m in metrics.values()),
        Column("ms / image"),
        Column("Implementation", "text", in_terminal=False),
    ]
    lines = []
    for rank, s in enumerate(order, 1):
        name = Cell(s.title)
        if s.status != "ok":
            whose = f" ({s.implementation})" if s.implementation else ""
            problem = f"{s.status}{whose}: {s.error}"
            lines.append(Line([Cell(NOTHING), name], problem=problem))
            continue
        cells = [_cell(s, g, m) for g in groups for m in metrics]
        ms = Cell.of_quantity(s.times.get("ms_per_image"), uncertain=s.disturbed)
        lines.append(Line([Cell(str(rank)), name, *cells, ms, Cell(s.implementation)], s.ours))
    return Table("", columns, lines, sortable=True)


def every_dataset(results: Results, order: Sequence[Standing]) -> Optional[Section]:
    """A table for each metric with a column for each dataset."""
    names, worked = ood_sets(results), [s for s in order if s.status == "ok"]
    if not names or not worked:
        return None
    groups = {s.name: f"{capital(s.role)}-OOD" for s in results.sets}
    tables = []
    for key, metric in shown_metrics(order).items():
        title = f"{metric}, % ({metric.better} is better)"
        columns = [Column(set_title(n), group=groups[n], better=metric.better) for n in names]
        lines = [Line([Cell(s.title), *(_cell(s, n, key) for n in names)], s.ours) for s in worked]
        tables.append(Table(title, [_NAME, *columns], lines, sortable=True))
    return Section("datasets", "Results by dataset", tables)


def shown_metrics(order: Sequence[Standing]) -> dict[str, Metric]:
    """The metrics that any method has."""
    known = {metric for s in order for _, metric in s.values}
    return {key: metric for key, metric in SHOWN.items() if key in known}


def metric_notes(order: Sequence[Standing]) -> list[str]:
    """What FPR@95 means, which differs between papers, and which times are uncertain."""
    told = [f"{m} is {m.meaning}." for m in shown_metrics(order).values() if m.meaning]
    return [*([" ".join(told)] if told else []), *uncertain_times(order)]


def uncertain_times(order: Sequence[Standing]) -> list[str]:
    """A sentence if the machine was busy while times were measured."""
    text = "Times marked ~ are uncertain: the machine was busy while they were measured."
    return [text] if any(s.disturbed for s in order) else []


def _column(metric: Metric, group: str) -> Column:
    return Column(metric.title, group=group, note=metric.note, better=metric.better)


def _cell(s: Standing, dataset: str, key: str) -> Cell:
    rank = s.ranks.get(dataset) if key == "AUROC" else None
    return Cell.of_mean(s.value(dataset, key), rank)
