"""The parameters alpha, r and M, one at a time around the settings in use.

The paper's r is a density; with `n` fitting samples and `M` bins, `r = O* M / n`, so it is varied
through `full_count`, the paper's O*.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Iterable, Mapping, Sequence

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.options import Options
from nac_openood.analysis.scores import Metrics, TestScores
from nac_openood.analysis.tabulate import (
    FPR_NOTE,
    Beside,
    beside,
    metric_entries,
    metric_heads,
    records_of,
    text_heads,
)
from nac_openood.benchmark.run.metrics import GROUP_WORDS
from nac_openood.core.bins import MIN_BINS
from nac_openood.core.layer_config import LayerConfig
from nac_openood.errors import NACError
from nac_openood.tables import Column, Entry, Lines, Series, Table


@dataclass(frozen=True)
class Parameter:
    """A parameter: its name in this package and in the paper, the paper's values and its table."""

    name: str
    symbol: str
    title: str
    values: tuple[float, ...]
    table: str
    axis: str


PARAMETERS = (
    Parameter("steepness", "alpha", "Steepness of the sigmoid, alpha",
              (1, 10, 100, 500, 1000), "Table 5", "steepness"),
    Parameter("bound", "r", "Lower bound for full coverage, r",
              (0.1, 0.5, 1, 5, 50), "Table 6", "r"),
    Parameter("n_bins", "M", "Number of bins, M",
              (10, 50, 100, 500, 1000), "Table 7", "n_bins"),
)  # fmt: skip
#: Steepness of layers other than the deepest, whose readings have another scale: times this.
_FACTORS = (0.01, 0.1, 1, 10, 100)


@dataclass(frozen=True)
class _Point:
    """A layer with one parameter changed, and what it gives alone and among all layers."""

    layer: str
    parameter: Parameter
    value: float
    config: LayerConfig
    alone: Metrics
    together: Metrics


def params(data: AnalysisData, options: Options) -> Finding:
    """AUROC and FPR@95 while one parameter of one layer changes."""
    points = _measured(data, options)
    deepest = data.layers[0]
    papers = {p: beside(data, options.against, p.table, p.axis) for p in PARAMETERS}
    shown = {p: [q for q in points if q.layer == deepest and q.parameter == p] for p in PARAMETERS}
    tables = [_table(data, p, found, papers[p]) for p, found in shown.items()]
    figures = [_figure(data, p, found, papers[p]) for p, found in shown.items()]
    lines = {
        (p.layer, p.parameter.name, p.value, p.config.full_count, layers): found
        for p in points
        for layers, found in (("alone", p.alone), ("all", p.together))
    }
    records = records_of(lines, "layer", "parameter", "value", "full_count", "layers")
    used = next(point for point in points if point.config == data.settings[point.layer])
    notes = [FPR_NOTE, "When M changes, O* stays as it is, so r changes with it."]
    notes += [note for paper in papers.values() for note in paper.notes]
    return Finding(
        "params", "Parameters alpha, r and M", _sentence(shown, data.main_group, deepest),
        [*tables, _sensitivity(data, points)], figures, records,
        {"default": used.together}, notes,
    )  # fmt: skip


def _measured(data: AnalysisData, options: Options) -> list[_Point]:
    wanted = {layer: list(_changes(data, layer, options)) for layer in data.layers}
    scores = TestScores(data)
    scores.prepare({layer: [config for *_, config in found] for layer, found in wanted.items()})
    return [
        _Point(
            layer, parameter, value, config, scores.metrics({layer: config}),
            scores.metrics({**data.settings, layer: config}),
        )
        for layer, found in wanted.items()
        for parameter, value, config in found
    ]  # fmt: skip


def _changes(
    data: AnalysisData, layer: str, options: Options
) -> Iterable[tuple[Parameter, float, LayerConfig]]:
    """The settings of a layer with one parameter changed, by value; those in use among them."""
    used, n = data.settings[layer], data.fitting.fit.n_samples
    steep, bound, bins = PARAMETERS
    values: Sequence[float] = options.steepness or (
        steep.values if layer == data.layers[0] else [used.steepness * f for f in _FACTORS]
    )
    for value in sorted({*values, used.steepness}):
        yield steep, value, replace(used, steepness=value)
    counts = {_count(r, n, used.n_bins): float(r) for r in options.bounds or bound.values}
    counts[used.full_count] = bound_of(used, n)
    for count, r in sorted(counts.items()):
        yield bound, r, replace(used, full_count=count)
    for m in sorted({*(options.n_bins or map(int, bins.values)), used.n_bins}):
        if m < MIN_BINS:
            raise NACError(f"`n_bins` must be at least {MIN_BINS}, got {m}.")
        yield bins, m, replace(used, n_bins=int(m))


def bound_of(used: LayerConfig, n: int) -> float:
    """The paper's r of settings that are fitted on `n` samples."""
    return used.full_count * used.n_bins / n


def _count(r: float, n: int, n_bins: int) -> int:
    """O* for a value of r: at least one sample."""
    if not r > 0:
        raise NACError(f"`bounds` must be above 0, got {r:g}.")
    return max(1, round(r * n / n_bins))


def _table(
    data: AnalysisData, parameter: Parameter, points: Sequence[_Point], paper: Beside
) -> Table:
    deepest, group = data.layers[0], data.main_group
    counted = [Column("O*")] if parameter.name == "bound" else []
    heads = metric_heads([f"{deepest} alone", "All layers"])
    rows: list[list[Entry]] = []
    for point in points:
        value = f"{point.value:g}"
        row: list[Entry] = [value, *([str(point.config.full_count)] if counted else [])]
        for found in (point.alone, point.together):
            row += metric_entries(found, [group])
        rows.append([*row, *paper.entries(value)])
    ours = [row for row, point in enumerate(points) if point.config == data.settings[deepest]]
    columns = [*text_heads(parameter.symbol), *counted, *heads, *paper.heads()]
    return Table(f"{parameter.title}: {GROUP_WORDS[group]}", columns, rows, ours)


def _figure(
    data: AnalysisData, parameter: Parameter, points: Sequence[_Point], paper: Beside
) -> Lines:
    deepest, group = data.layers[0], data.main_group
    alone = Series(f"{deepest} alone", [(p.value, p.alone[group]["AUROC"]) for p in points])
    together = Series("all layers", [(p.value, p.together[group]["AUROC"]) for p in points])
    printed = []
    if paper.rows:
        line = [(float(v), found["AUROC"].mean) for v, found in paper.rows.items()]
        printed = [Series("paper", line, printed=True)]
    used = next(p.value for p in points if p.config == data.settings[deepest])
    return Lines(
        parameter.name, parameter.title, f"{parameter.symbol} of {deepest} (log scale)",
        f"{GROUP_WORDS[group]} AUROC, %", [alone, together, *printed], log_x=True, mark=used,
    )  # fmt: skip


def _sensitivity(data: AnalysisData, points: Sequence[_Point]) -> Table:
    """How much each parameter of each layer matters to all layers together."""
    group = data.main_group
    rows: list[list[Entry]] = []
    for layer in data.layers:
        for parameter in PARAMETERS:
            found = [p for p in points if p.layer == layer and p.parameter == parameter]
            by_value = {p.value: p.together[group]["AUROC"] for p in found}
            best = max(by_value, key=lambda value: by_value[value])
            used = next(p for p in found if p.config == data.settings[layer])
            rows.append([
                layer, parameter.symbol, f"{used.value:g}", used.together[group]["AUROC"],
                min(by_value.values()), by_value[best], f"{best:g}",
            ])  # fmt: skip
    numbers = ("In use", "AUROC in use", "Lowest", "Highest", "Best value")
    heads = [*text_heads("Layer", "Parameter"), *map(Column, numbers)]
    title = f"Every layer: {GROUP_WORDS[group]} AUROC of all layers while one parameter changes"
    return Table(title, heads, rows)


def _sentence(shown: Mapping[Parameter, Sequence[_Point]], group: str, layer: str) -> str:
    parts = []
    for parameter, points in shown.items():
        values: dict[float, Any] = {p.value: p.alone[group]["AUROC"] for p in points}
        best = max(values, key=lambda value: values[value])
        span = f"{min(values.values()):.1f} to {values[best]:.1f} %"
        parts.append(f"{parameter.symbol} ({span}, best at {best:g})")
    return (
        f"With {layer} alone, {GROUP_WORDS[group]} AUROC depends on {parts[0]}, {parts[1]} and "
        f"{parts[2]}."
    )
