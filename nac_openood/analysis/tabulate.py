"""Metrics as columns of a table, as records of a CSV file, and beside the paper's numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Iterable, Mapping, Optional, Sequence

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.scores import Metrics
from nac_openood.benchmark.paper.printed import PrintedValue
from nac_openood.benchmark.paper.published import PRINTED_METRICS, table
from nac_openood.benchmark.run.metrics import GROUP_NAMES, METRICS
from nac_openood.tables import BarGroups, Column, Entry, NamedRow

#: The metrics of the tables: OpenOOD's FPR@95 counts rejected ID samples when 95 % of the OOD
#: samples are found.
TABLE_METRICS = {"AUROC": "higher", "FPR@95": "lower"}
#: Their names in the names of files.
METRIC_KEYS = {"AUROC": "auroc", "FPR@95": "fpr95"}
FPR_NOTE = (
    "FPR@95 is the share of ID samples rejected when 95 % of the OOD samples are found, as in "
    "OpenOOD. All numbers are percent on test data; means are over the OOD sets."
)


def text_heads(*titles: str) -> list[Column]:
    """Headings of columns of texts."""
    return [Column(title, number=False) for title in titles]


def metric_heads(titles: Iterable[str]) -> list[Column]:
    """Headings of AUROC and FPR@95 below each title."""
    return [
        Column(metric, title, better)
        for title in titles
        for metric, better in TABLE_METRICS.items()
    ]


def metric_entries(found: Metrics, names: Iterable[str]) -> list[Entry]:
    """The entries below `metric_heads`: those of OOD sets or means."""
    return [found[name][metric] for name in names for metric in TABLE_METRICS]


def group_heads(data: AnalysisData) -> list[Column]:
    """Headings of AUROC and FPR@95 of the near and far means."""
    return metric_heads(GROUP_NAMES[group] for group in data.groups)


def group_entries(data: AnalysisData, found: Metrics) -> list[Entry]:
    """The entries below `group_heads`."""
    return metric_entries(found, data.groups)


def records_of(found: Mapping[Any, Metrics], *axes: str) -> list[dict[str, Any]]:
    """A record for every OOD set and mean of all metrics.

    Args:
        found: metrics by their coordinate on the axis, or coordinates on several axes.
        axes: names of the axes.
    """
    return [
        {
            **dict(zip(axes, at if isinstance(at, tuple) else (at,))),
            "dataset": name,
            **{m: line[m] for m in METRICS if m in line},
        }
        for at, metrics in found.items()
        for name, line in metrics.items()
    ]


def metric_bars(
    metric: str, title: str, names: Sequence[str], rows: Sequence[NamedRow]
) -> BarGroups:
    """Bars of AUROC or FPR@95; for the arguments see `BarGroups`."""
    hint, origin = ("50 is chance", 50.0) if metric == "AUROC" else ("lower is better", 0.0)
    label = f"{metric}, % ({hint})"
    return BarGroups(METRIC_KEYS[metric], title, label, names, rows, origin)


def ranked_bars(
    metric: str, title: str, found: Mapping[str, Mapping[str, float]], ours: Sequence[str]
) -> BarGroups:
    """Bars of AUROC or FPR@95, best first, of metrics by row; `ours` are highlighted."""
    rows = [(name, [line[metric]]) for name, line in found.items()]
    rows.sort(key=lambda row: row[1][0], reverse=metric == "AUROC")
    return replace(metric_bars(metric, title, [metric], rows), ours=ours)


@dataclass(frozen=True)
class Beside:
    """Numbers of the paper for the rows of a table; empty if nobody asked for them.

    Args:
        notes: which numbers they are, a sentence.
        rows: by row and metric.
    """

    notes: Sequence[str] = ()
    rows: Mapping[str, Mapping[str, PrintedValue]] = field(default_factory=dict)

    def heads(self) -> list[Column]:
        """Headings of the paper's metrics."""
        return metric_heads(["Paper"] if self.rows else [])

    def entries(self, row: str) -> list[Entry]:
        """The entries below `heads`."""
        if not self.rows:
            return []
        values = self.rows.get(row, {})
        return [printed_entry(values.get(metric)) for metric in TABLE_METRICS]


def printed_entry(value: Optional[PrintedValue]) -> Entry:
    """A number of the paper as an entry of a table."""
    if value is None:
        return None
    return value.mean if value.std is None else (value.mean, value.std)


def beside(data: AnalysisData, against: Optional[str], name: str, axis: str, **at: str) -> Beside:
    """The numbers of a table of the paper by its rows.

    They are those of the same data and network where the table has them. Otherwise they are those
    of the table's first benchmark, and the note says so.

    Args:
        data: what was measured.
        against: None returns no numbers.
        name: e.g. "Table 4".
        axis: the axis of the rows, e.g. "layers".
        at: coordinates on other axes.
    """
    if against is None:
        return Beside()
    known: dict[tuple[str, str], dict[str, dict[str, PrintedValue]]] = {}
    for cell in table(name).cells():
        wanted = at.items() <= cell.at.items() and cell.at["metric"] in PRINTED_METRICS
        if wanted and cell.value is not None:
            rows = known.setdefault((cell.at["benchmark"], cell.at["architecture"]), {})
            rows.setdefault(cell.at[axis], {})[cell.at["metric"]] = cell.value
    same = (data.id_name, data.arch) in known
    benchmark = (data.id_name, data.arch) if same else next(iter(known))
    what = "the same benchmark" if same else "another benchmark, so only trends can be compared"
    note = f"Paper: {name}, {' with '.join(benchmark)} ({what}); means over its OOD sets."
    return Beside([note], known[benchmark])
