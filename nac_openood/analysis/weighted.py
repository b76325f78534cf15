"""Layers with weights: searched on validation data, then measured on test data."""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.options import Options
from nac_openood.analysis.scores import Metrics, TestScores
from nac_openood.analysis.tabulate import (
    FPR_NOTE,
    TABLE_METRICS,
    beside,
    metric_bars,
    metric_heads,
    records_of,
    text_heads,
)
from nac_openood.benchmark.run.metrics import FAR, GROUP_WORDS
from nac_openood.core.layer_config import LayerConfig
from nac_openood.errors import NACError
from nac_openood.search.result import SearchResult
from nac_openood.search.run import search
from nac_openood.search.space import PAPER_SPACE
from nac_openood.tables import BarGroups, Column, Entry, Table

_WAYS = ("equal weights", "searched weights")
#: A grid over the weights of more layers would take long; then they are searched at random.
_MOST_GRID = 5


def weighted(data: AnalysisData, options: Options) -> Finding:
    """Layer weights out of 0.2, 0.4, ..., 1.0 against equal weights."""
    if len(data.layers) < 2:
        raise NACError(
            f"weights need at least two layers, and NAC has {data.layers} here. Use settings with "
            "more layers."
        )
    equal = {name: replace(used, weight=1.0) for name, used in data.settings.items()}
    result = _searched(data, equal, options)
    best, tried = dict(result.layers), result.evaluated
    scores = TestScores(data)
    found = dict(zip(_WAYS, (scores.metrics(equal), scores.metrics(best))))
    weights = {name: used.weight for name, used in best.items()}
    paper = beside(data, options.against, "Table 17", "weights", dataset=FAR)
    chosen = [[name, f"{weight:g}"] for name, weight in weights.items()]
    heads = [*text_heads("Layer"), Column("Weight")]
    tables = [_table(data, found), Table("Weights", heads, chosen)]
    if paper.rows:
        rows: list[list[Entry]] = [[way, *paper.entries(way)] for way in paper.rows]
        heads = [*text_heads("Weights"), *paper.heads()]
        tables.append(Table("Published", heads, rows))
    return Finding(
        "weighted", "Weighted layers", _sentence(found, weights, data.main_group), tables,
        [_bars(data, found, metric) for metric in TABLE_METRICS],
        records_of(found, "weights"),
        {"weights": weights, "candidates": tried},
        [
            FPR_NOTE,
            f"{tried} combinations of weights were tried; the one with the best AUROC of ID "
            f"against OOD validation data ({100 * result.best.auroc:.2f} %) is used. Of equally "
            "good ones it is the first, with large weights. The other settings stay as they are.",
            *paper.notes,
        ],
    )  # fmt: skip


def _searched(data: AnalysisData, equal: dict[str, LayerConfig], options: Options) -> SearchResult:
    """The best weights on validation data."""
    given = data.fitting
    return search(
        given.fit, given.id_val, given.ood_val, layers=equal,
        sweep={name: {"weight": PAPER_SPACE["weight"]} for name in equal},
        strategy="grid" if len(equal) <= _MOST_GRID else "random", leave_out=False, guard=None,
        surrogate=given.surrogate, seed=options.seed, progress=options.progress,
    )  # fmt: skip


def _table(data: AnalysisData, found: Mapping[str, Metrics]) -> Table:
    """A row for each OOD set and mean."""
    heads = metric_heads([*_WAYS, "Difference"])
    rows: list[list[Entry]] = []
    for name in (*data.names("near", "far"), *data.groups):
        numbers = [[found[way][name][metric] for metric in TABLE_METRICS] for way in _WAYS]
        gain = [f"{b - a:+.2f}" for a, b in zip(*numbers)]
        title = f"{GROUP_WORDS[name]} mean" if name in GROUP_WORDS else name
        rows.append([title, *numbers[0], *numbers[1], *gain])
    return Table("", [*text_heads("OOD set"), *heads], rows)


def _bars(data: AnalysisData, found: Mapping[str, Metrics], metric: str) -> BarGroups:
    names = data.names("near", "far")
    rows = [(name, [found[way][name][metric] for way in _WAYS]) for name in names]
    return metric_bars(metric, f"{metric} by OOD set", _WAYS, rows)


def _sentence(found: Mapping[str, Metrics], weights: dict[str, float], group: str) -> str:
    before, after = (found[way][group] for way in _WAYS)
    listed = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
    return (
        f"Weights searched on validation data ({listed}) change {GROUP_WORDS[group]} AUROC by "
        f"{after['AUROC'] - before['AUROC']:+.2f} points and FPR@95 by "
        f"{after['FPR@95'] - before['FPR@95']:+.2f}."
    )
