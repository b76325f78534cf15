"""The result of a study: a sentence, tables, figures and numbers, and the network they are of.

Most studies measure metrics at some coordinates (layers, a parameter, a method): a `MetricStudy`
makes tables beside the paper's numbers, bars, and records of a CSV file of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Optional, Sequence

from nac_openood import files
from nac_openood.analysis.scores import Metrics
from nac_openood.benchmark.paper.published import PRINTED_METRICS, PrintedValue, table
from nac_openood.benchmark.run.results import GROUP_WORDS, METRICS
from nac_openood.records import from_values
from nac_openood.tables import AnyFigure, Column, Entry, Examples, Table, metric_bars

if TYPE_CHECKING:
    from nac_openood.analysis.data import AnalysisData, Options

_FORMAT = 1
#: The paper's numbers by row and metric.
PaperRows = Mapping[Any, Mapping[str, PrintedValue]]
#: The metrics of the tables and which values are better.
TABLE_METRICS = {"AUROC": "higher", "FPR@95": "lower"}
FPR_NOTE = (
    "FPR@95 is the share of ID samples rejected when 95 % of the OOD samples are found, as in "
    "OpenOOD. All numbers are percent on test data; means are over the OOD sets."
)


@dataclass(frozen=True)
class About:
    """Which network and data a finding is about.

    Args:
        id_name: name of the in-distribution data.
        arch: name of the architecture.
        accuracy: ID accuracy in percent.
        roles: "id", "csid", "near" or "far" by test set.
        samples: number of samples by set, of the test sets and those that NAC is fitted on.
        ood_val: the OOD validation set: its `name`, and whether it is a `surrogate`, made of ID
            validation data.
        settings: those of NAC by layer.
        searched: whether they were searched.
        made_with: what readings depend on; `versions` are those of the libraries.
        command: the command that repeats the analysis.
        training_samples: how many were read.
    """

    id_name: str
    arch: str
    accuracy: float
    roles: Mapping[str, str]
    samples: Mapping[str, int]
    ood_val: Mapping[str, Any]
    settings: Mapping[str, Mapping[str, Any]]
    searched: bool
    made_with: Mapping[str, Any]
    command: str
    training_samples: int = 0


@dataclass(frozen=True)
class Finding:
    """The result of a study.

    Args:
        kind: name of the kind of analysis.
        title: title of its section.
        sentence: the result in one or two sentences.
        tables: to show.
        figures: to draw; their keys are unique.
        records: every number with its coordinates, for the CSV file; all have the same keys.
        values: other results as JSON values.
        notes: what a reader should know, a sentence each.
        about: which network and data it is about; filled in by `analyze`.
        gallery: samples to look at.
    """

    kind: str
    title: str
    sentence: str
    tables: Sequence[Table] = ()
    figures: Sequence[AnyFigure] = ()
    records: Sequence[Mapping[str, Any]] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    about: Optional[About] = None
    gallery: Sequence[Examples] = ()

    def save(self, folder: Path) -> Path:
        """Write `<kind>.json` into a folder, atomically."""
        return files.write_document(folder / f"{self.kind}.json", _FORMAT, asdict(self))

    @classmethod
    def load(cls, path: Path) -> Finding:
        """Read what `save` wrote.

        Raises:
            FileError: the file is missing, damaged or newer than this package.
        """
        missing, again = f"there is no {path}", "Repeat the analysis"
        return files.read_document(
            path, _FORMAT, partial(from_values, cls), missing=missing, again=again
        )


# -- metrics as tables, figures and records --------------------------------------------------


def printed_entry(value: Optional[PrintedValue]) -> Entry:
    """A number of the paper as an entry of a table."""
    if value is None:
        return None
    return value.mean if value.std is None else (value.mean, value.std)


class MetricStudy:
    """Metrics measured at some coordinates, and the tables, figures and records made of them.

    Args:
        data: the network and data that are measured.
        options: `against` says whether the paper's numbers are shown.
        axes: names of the coordinates, e.g. "layers".
        group: the mean over OOD sets that sentences and bars are about; None takes that of the
            paper's ablations: far OOD, or near without a far set.

    Attributes:
        found: metrics by their coordinate on the axis, or coordinates on several axes.
        tables: those of the finding.
        figures: those of the finding.
        notes: those of the finding.
        word: the name of the group inside a sentence.
        title: the name of the group in titles.
    """

    def __init__(
        self, data: AnalysisData, options: Options, *axes: str, group: Optional[str] = None
    ) -> None:
        self.data, self.against, self.axes = data, options.against, axes
        self.group = group or list(data.groups)[-1]
        self.word, self.title = GROUP_WORDS[self.group], data.groups[self.group]
        self.found: dict[Any, Metrics] = {}
        self.tables: list[Table] = []
        self.figures: list[AnyFigure] = []
        self.notes = [FPR_NOTE]

    def values(self, metric: str = "AUROC") -> dict[Any, float]:
        """A metric of the group by coordinates."""
        return {at: metrics[self.group][metric] for at, metrics in self.found.items()}

    def paper(self, name: str, axis: str, **at: str) -> PaperRows:
        """The numbers of a table of the paper by its rows; none unless they are requested.

        They are those of the same data and network where the table has them, else those of the
        table's first benchmark; a note says which.

        Args:
            name: e.g. "Table 4".
            axis: the axis of the rows, e.g. "layers".
            at: coordinates on other axes.
        """
        if self.against is None:
            return {}
        found: dict[tuple[str, str], dict[str, dict[str, PrintedValue]]] = {}
        for cell, value in table(name).cells():
            wanted = at.items() <= cell.items() and cell["metric"] in PRINTED_METRICS
            if wanted and value is not None:
                rows = found.setdefault((cell["benchmark"], cell["architecture"]), {})
                rows.setdefault(cell[axis], {})[cell["metric"]] = value
        benchmark, what = (self.data.id_name, self.data.arch), "the same benchmark"
        if benchmark not in found:
            benchmark = next(iter(found))
            what = "another benchmark, so only trends can be compared"
        note = f"Paper: {name}, {' with '.join(benchmark)} ({what}); means over its OOD sets."
        self.notes += [note] if note not in self.notes else []
        return found[benchmark]

    def table(
        self,
        title: str,
        heads: Sequence[Column],
        rows: Iterable[Sequence[Any]],
        *,
        columns: Optional[Mapping[Any, str]] = None,
        paper: PaperRows = {},  # noqa: B006
        ours: Sequence[int] = (),
    ) -> None:
        """Add a table with AUROC and FPR@95 in every row.

        Args:
            title: above the table.
            heads: headings of the first columns.
            rows: entries of the first columns, metrics by column, and the row of the paper if it
                has one.
            columns: the keys of the metrics to show, and the titles above them; None shows the
                means over near-OOD and far-OOD sets.
            paper: the paper's numbers.
            ours: indices of the rows to highlight.
        """
        columns, lines = self.data.groups if columns is None else columns, []
        for entries, found, *row in rows:
            measured = [found[name][metric] for name in columns for metric in TABLE_METRICS]
            numbers = paper.get(row[0], {}) if row else {}
            printed = [printed_entry(numbers.get(m)) for m in TABLE_METRICS if paper]
            lines.append([*entries, *measured, *printed])
        measures = [
            Column(metric, above, better)
            for above in (*columns.values(), *(["Paper"] if paper else []))
            for metric, better in TABLE_METRICS.items()
        ]
        self.tables.append(Table(title, [*heads, *measures], lines, ours))

    def ranked_bars(self, title: str, names: Mapping[Any, str], *ours: str) -> None:
        """Add bars of AUROC and of FPR@95, best first; `names` are those of the coordinates."""
        for metric in TABLE_METRICS:
            values = self.values(metric)
            rows = [(name, [values[at]]) for at, name in names.items()]
            rows.sort(key=lambda row: row[1][0], reverse=metric == "AUROC")
            self.figures.append(metric_bars(metric, title.format(metric), [metric], rows, ours))

    def finding(self, kind: str, title: str, sentence: str, values: Mapping[str, Any]) -> Finding:
        """The finding, with a record for every OOD set and mean of all metrics."""
        records = [
            {
                **dict(zip(self.axes, at if isinstance(at, tuple) else (at,))),
                "dataset": name,
                **{m: line[m] for m in METRICS if m in line},
            }
            for at, metrics in self.found.items()
            for name, line in metrics.items()
        ]
        return Finding(
            kind, title, sentence, self.tables, self.figures, records, values, self.notes
        )
