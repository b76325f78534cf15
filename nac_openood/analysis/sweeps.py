"""Sensitivity to alpha, r and M, one at a time, and to the number of training samples.

The paper's r is a density; with `n` fitting samples and `M` bins, `r = O* M / n`, so it is varied
through `full_count`, the paper's O*.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Iterable, NamedTuple

import numpy as np

from nac_openood.analysis import tabulate
from nac_openood.analysis.data import AnalysisData, Options
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.scoring import Metrics, TestScores
from nac_openood.benchmark.run.results import GROUP_WORDS, Value
from nac_openood.core.layer_config import MIN_BINS, LayerConfig
from nac_openood.detector.batches import bar
from nac_openood.errors import NACError
from nac_openood.tables import Column, Entry, Lines, Series, Table


class Parameter(NamedTuple):
    """A parameter: its symbol and values in the paper, and the table and axis that vary it."""

    symbol: str
    title: str
    values: tuple[float, ...]
    table: str
    axis: str


#: The parameters by their names in records.
PARAMETERS = {
    "steepness": Parameter("alpha", "Steepness of the sigmoid, alpha",
                           (1, 10, 100, 500, 1000), "Table 5", "steepness"),
    "bound": Parameter("r", "Lower bound for full coverage, r",
                       (0.1, 0.5, 1, 5, 50), "Table 6", "r"),
    "n_bins": Parameter("M", "Number of bins, M", (10, 50, 100, 500, 1000), "Table 7", "n_bins"),
}  # fmt: skip
#: Factors of the steepness of layers other than the deepest, whose readings have another scale.
_FACTORS = (0.01, 0.1, 1, 10, 100)
#: O* as it is, or scaled with the number of samples, which keeps the paper's r.
_SCALINGS = ("O* kept", "r kept")


class _Point(NamedTuple):
    """A layer with one parameter changed, and the metrics of it alone and of all layers."""

    layer: str
    parameter: str
    value: float
    config: LayerConfig
    alone: Metrics
    all: Metrics


def params(data: AnalysisData, options: Options) -> Finding:
    """AUROC and FPR@95 while one parameter of one layer changes."""
    group, deepest = data.main_group, data.layers[0]
    changes = {layer: list(_changes(data, layer, options)) for layer in data.layers}
    scores = TestScores(data)
    scores.prepare({layer: [config for *_, config in found] for layer, found in changes.items()})
    points = [
        _Point(layer, name, value, config, scores.metrics({layer: config}),
               scores.metrics({**data.settings, layer: config}))
        for layer, found in changes.items()
        for name, value, config in found
    ]  # fmt: skip
    in_use = [point for point in points if point.config == data.settings[point.layer]]
    tables, figures, spans = [], [], []
    notes = [tabulate.FPR_NOTE, "When M changes, O* stays as it is, so r changes with it."]
    sensitivity: list[list[Entry]] = []
    for layer, (name, parameter) in product(data.layers, PARAMETERS.items()):
        shown = [p for p in points if (p.layer, p.parameter) == (layer, name)]
        used = next(p for p in shown if p in in_use)
        all_layers = {p.value: p.all[group]["AUROC"] for p in shown}
        best = max(all_layers, key=all_layers.__getitem__)
        sensitivity.append([
            layer, parameter.symbol, f"{used.value:g}", all_layers[used.value],
            min(all_layers.values()), all_layers[best], f"{best:g}",
        ])  # fmt: skip
        if layer != deepest:
            continue
        paper = tabulate.paper_rows(data, options.against, parameter.table, parameter.axis)
        counted = [Column("O*")] if name == "bound" else []
        rows = []
        for p in shown:
            texts = [f"{p.value:g}", *(str(p.config.full_count) for _ in counted)]
            rows.append((texts, {"alone": p.alone[group], "all": p.all[group]}, texts[0]))
        tables.append(tabulate.metric_table(
            f"{parameter.title}: {GROUP_WORDS[group]}", [parameter.symbol, *counted],
            {"alone": f"{deepest} alone", "all": "All layers"}, rows, paper=paper,
            ours=[shown.index(used)],
        ))  # fmt: skip
        alone = {p.value: p.alone[group]["AUROC"] for p in shown}
        printed = [(float(v), found["AUROC"].mean) for v, found in paper.rows.items()]
        lines = {f"{deepest} alone": list(alone.items()), "all layers": list(all_layers.items())}
        series = [Series(title, line) for title, line in lines.items()]
        figures.append(Lines(
            name, parameter.title, f"{parameter.symbol} of {deepest} (log scale)",
            f"{GROUP_WORDS[group]} AUROC, %",
            [*series, *([Series("paper", printed, printed=True)] if printed else [])],
            log_x=True, mark=used.value,
        ))  # fmt: skip
        best = max(alone, key=alone.__getitem__)
        span = f"{min(alone.values()):.1f} to {alone[best]:.1f} %"
        spans.append(f"{parameter.symbol} ({span}, best at {best:g})")
        notes += paper.notes
    numbers = ("In use", "AUROC in use", "Lowest", "Highest", "Best value")
    tables.append(Table(
        f"Every layer: {GROUP_WORDS[group]} AUROC of all layers while one parameter changes",
        [*tabulate.text_heads("Layer", "Parameter"), *map(Column, numbers)], sensitivity,
    ))  # fmt: skip
    records = {
        (p.layer, p.parameter, p.value, p.config.full_count, which): metrics
        for p in points
        for which, metrics in (("alone", p.alone), ("all", p.all))
    }
    return Finding(
        "params", "Parameters alpha, r and M",
        f"With {deepest} alone, {GROUP_WORDS[group]} AUROC depends on {spans[0]}, {spans[1]} and "
        f"{spans[2]}.",
        tables, figures,
        tabulate.records_of(records, "layer", "parameter", "value", "full_count", "layers"),
        {"default": in_use[0].all},
        notes,
    )  # fmt: skip


def _changes(
    data: AnalysisData, layer: str, options: Options
) -> Iterable[tuple[str, float, LayerConfig]]:
    """The settings of a layer with one parameter changed, by value; those in use among them."""
    used, n = data.settings[layer], data.fitting.fit.n_samples
    scaled = tuple(used.steepness * factor for factor in _FACTORS)
    default = PARAMETERS["steepness"].values if layer == data.layers[0] else scaled
    for value in sorted({*(options.steepness or default), used.steepness}):
        yield "steepness", value, replace(used, steepness=value)
    counts = {}
    for r in options.bounds or PARAMETERS["bound"].values:
        if not r > 0:
            raise NACError(f"`bounds` must be above 0, got {r:g}.")
        counts[max(1, round(r * n / used.n_bins))] = float(r)
    counts[used.full_count] = used.full_count * used.n_bins / n
    for count, r in sorted(counts.items()):
        yield "bound", r, replace(used, full_count=count)
    for m in sorted({*map(int, options.n_bins or PARAMETERS["n_bins"].values), used.n_bins}):
        if m < MIN_BINS:
            raise NACError(f"`n_bins` must be at least {MIN_BINS}, got {m}.")
        yield "n_bins", m, replace(used, n_bins=m)


def samples(data: AnalysisData, options: Options) -> Finding:
    """AUROC and FPR@95 over the number of training samples, drawn at random and repeatedly."""
    group, total = data.main_group, len(data.train_rows)
    wrong = [share for share in options.shares if not 0 < share <= 1]
    if wrong or not options.shares:
        raise NACError(f"`shares` must be above 0 and at most 1, got {wrong}.")
    if options.repeats < 1:
        raise NACError(f"`repeats` must be at least 1, got {options.repeats}.")
    shares = {max(1, round(share * total)): share for share in sorted(options.shares)}
    # one draw is enough if it takes all samples
    draws = [(n, d) for n in shares for d in range(1 if n >= total else options.repeats)]
    records: dict[tuple[int, float, str, int], Metrics] = {}
    for n, draw in bar(draws, "samples", options.progress):
        rng = np.random.RandomState([options.seed, n, draw])
        scores = TestScores(data, data.train.rows(np.sort(rng.permutation(total)[:n])))
        ratio = n / data.fitting.fit.n_samples
        scaled = {
            name: replace(used, full_count=max(1, round(used.full_count * ratio)))
            for name, used in data.settings.items()
        }
        scores.prepare({name: [data.settings[name], scaled[name]] for name in data.layers})
        for way, settings in zip(_SCALINGS, (data.settings, scaled)):
            records[n, shares[n], way, draw] = scores.metrics(settings)

    def summary(n: int, way: str, name: str, metric: str) -> Value:
        found = [m[name][metric] for at, m in records.items() if (at[0], at[2]) == (n, way)]
        return Value.of(found)

    columns = {
        (way, name): f"{title}, {way}" for way in _SCALINGS for name, title in data.groups.items()
    }
    rows = []
    for n, share in shares.items():
        line = {at: {m: summary(n, *at, m) for m in tabulate.TABLE_METRICS} for at in columns}
        rows.append(([f"{n:,} ({100 * share:g} %)"], line, ""))
    figures = [
        Lines(
            tabulate.metric_key(m), f"{data.groups[group]} {m}", "training samples (log scale)",
            f"{GROUP_WORDS[group]} {m}, %",
            [Series(way, [(n, *summary(n, way, group, m)) for n in shares]) for way in _SCALINGS],
            log_x=True,
        )
        for m in tabulate.TABLE_METRICS
    ]  # fmt: skip
    least, most = min(shares), max(shares)
    means = []
    for way in _SCALINGS:
        few, many = (summary(n, way, group, "AUROC").mean for n in (least, most))
        means.append(f"{few:.2f} % and {many:.2f} % ({way})")
    return Finding(
        "samples", "Number of training samples",
        f"With {least:,} and with {most:,} training samples ({100 * shares[least]:g} % and "
        f"{100 * shares[most]:g} % of those read), {GROUP_WORDS[group]} AUROC is "
        f"{' or '.join(means)}.",
        [tabulate.metric_table("", ["Training samples"], columns, rows)], figures,
        tabulate.records_of(records, "samples", "share", "way", "repeat"),
        {"training_samples": total, "repeats": options.repeats},
        [
            tabulate.FPR_NOTE,
            "Mean \u00b1 (population) standard deviation over random draws. NAC's settings were "
            f"chosen for {data.fitting.fit.n_samples} samples. 'O* kept' uses them as they are; "
            "'r kept' scales O* with the number of samples, so that the same share of samples "
            "fills a bin.",
        ],
    )  # fmt: skip
