"""Metrics as tables, bars and records of a CSV file, beside the paper's numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.scoring import Metrics
from nac_openood.benchmark.paper.published import PRINTED_METRICS, PrintedValue, table
from nac_openood.benchmark.run.results import METRICS
from nac_openood.tables import BarGroups, Column, Entry, NamedRow, Table

#: The metrics of the tables and which values are better.
TABLE_METRICS = {"AUROC": "higher", "FPR@95": "lower"}
#: Entries of the first columns, metrics by key, and the row of the paper.
MetricRow = tuple[Sequence[Entry], Mapping[Any, Mapping[str, Any]], Any]
FPR_NOTE = (
    "FPR@95 is the share of ID samples rejected when 95 % of the OOD samples are found, as in "
    "OpenOOD. All numbers are percent on test data; means are over the OOD sets."
)


def metric_key(metric: str) -> str:
    """The name of a metric in file names: "auroc" or "fpr95"."""
    return metric.lower().replace("@", "")


def text_heads(*titles: str) -> list[Column]:
    """Headings of text columns."""
    return [Column(title, number=False) for title in titles]


def printed_entry(value: Optional[PrintedValue]) -> Entry:
    """A number of the paper as an entry of a table."""
    if value is None:
        return None
    return value.mean if value.std is None else (value.mean, value.std)


@dataclass(frozen=True)
class PaperRows:
    """The paper's numbers for the rows of a table; empty if not requested.

    Args:
        notes: where they come from, a sentence.
        rows: by row and metric.
    """

    notes: Sequence[str] = ()
    rows: Mapping[Any, Mapping[str, PrintedValue]] = field(default_factory=dict)

    def entries(self, row: Any) -> list[Entry]:
        """AUROC and FPR@95 of a row."""
        values = self.rows.get(row, {})
        return [printed_entry(values.get(metric)) for metric in TABLE_METRICS if self.rows]


def paper_rows(
    data: AnalysisData, against: Optional[str], name: str, axis: str, **at: str
) -> PaperRows:
    """The numbers of a table of the paper by its rows.

    They are those of the same data and network where the table has them, else those of the
    table's first benchmark; the note says which.

    Args:
        data: what was measured.
        against: None returns no numbers.
        name: e.g. "Table 4".
        axis: the axis of the rows, e.g. "layers".
        at: coordinates on other axes.
    """
    if against is None:
        return PaperRows()
    found: dict[tuple[str, str], dict[str, dict[str, PrintedValue]]] = {}
    for cell in table(name).cells():
        wanted = at.items() <= cell.at.items() and cell.at["metric"] in PRINTED_METRICS
        if wanted and cell.value is not None:
            rows = found.setdefault((cell.at["benchmark"], cell.at["architecture"]), {})
            rows.setdefault(cell.at[axis], {})[cell.at["metric"]] = cell.value
    same = (data.id_name, data.arch) in found
    benchmark = (data.id_name, data.arch) if same else next(iter(found))
    what = "the same benchmark" if same else "another benchmark, so only trends can be compared"
    note = f"Paper: {name}, {' with '.join(benchmark)} ({what}); means over its OOD sets."
    return PaperRows([note], found[benchmark])


def metric_table(
    title: str,
    heads: Sequence[Union[str, Column]],
    columns: Mapping[Any, str],
    rows: Iterable[MetricRow],
    *,
    paper: PaperRows = PaperRows(),
    ours: Sequence[int] = (),
) -> Table:
    """A table with AUROC and FPR@95 in every row.

    Args:
        title: above the table.
        heads: headings of the first columns; a string is the heading of a text column.
        columns: the keys of the metrics to show, e.g. OOD sets, and the titles above them.
        rows: from top to bottom.
        paper: the paper's numbers.
        ours: indices of the rows to highlight.
    """
    first = [text_heads(head)[0] if isinstance(head, str) else head for head in heads]
    measured = [
        Column(metric, above, better)
        for above in (*columns.values(), *(["Paper"] if paper.rows else []))
        for metric, better in TABLE_METRICS.items()
    ]
    lines = [
        [*entries, *(found[n][m] for n in columns for m in TABLE_METRICS), *paper.entries(row)]
        for entries, found, row in rows
    ]
    return Table(title, [*first, *measured], lines, ours)


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
    metric: str, title: str, names: Sequence[str], rows: Sequence[NamedRow], *ours: str
) -> BarGroups:
    """Bars of AUROC or FPR@95; for the arguments see `BarGroups`."""
    hint, origin = ("50 is chance", 50.0) if metric == "AUROC" else ("lower is better", 0.0)
    label = f"{metric}, % ({hint})"
    return BarGroups(metric_key(metric), title, label, names, rows, origin, ours=ours)


def ranked_bars(
    title: str, found: Mapping[str, Mapping[str, float]], *ours: str
) -> list[BarGroups]:
    """Bars of AUROC and of FPR@95, best first, of metrics by row; `ours` are highlighted."""
    figures = []
    for metric in TABLE_METRICS:
        rows = [(name, [line[metric]]) for name, line in found.items()]
        rows.sort(key=lambda row: row[1][0], reverse=metric == "AUROC")
        figures.append(metric_bars(metric, title.format(metric), [metric], rows, *ours))
    return figures
