"""Ablations: layers and their weights, alpha, r and M, training samples; layers of NAC+.

The paper's r is a density; with `n` fitting samples and `M` bins, `r = O* M / n`, so it is varied
through `full_count`, the paper's O*.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations, product, repeat
from typing import Any, Iterable, Iterator, NamedTuple, Sequence

import numpy as np

from nac_openood import tables
from nac_openood.analysis import PLUS
from nac_openood.analysis.data import AnalysisData, Options
from nac_openood.analysis.finding import TABLE_METRICS, Finding, MetricStudy
from nac_openood.analysis.scores import Metrics, NACScores, PlusScores
from nac_openood.benchmark.run.results import FAR, GROUP_WORDS, Value
from nac_openood.core.fusion import ALIGNMENT, DISTANCE, LOGITS
from nac_openood.core.layer_config import LayerConfig, whole_number
from nac_openood.core.plus import distance_of
from nac_openood.core.plus_layer import MAX_NEURONS
from nac_openood.detector.batches import bar
from nac_openood.detector.readings import Readings
from nac_openood.errors import NACError
from nac_openood.search.run import PAPER_SPACE, search
from nac_openood.tables import Column, Entry, Lines, Series, Table, text_columns

#: With more layers, only the deepest ones together, single layers, and all but one are tried.
_MOST_SUBSETS = 6
#: A grid over the weights of more layers would take long; then they are searched at random.
_MOST_GRID = 5


class Parameter(NamedTuple):
    """A parameter: its symbol and values in the paper, and the table and axis that vary it."""

    symbol: str
    meaning: str
    values: tuple[float, ...]
    table: str
    axis: str


#: The parameters by their names in records.
PARAMETERS = {
    "steepness": Parameter(
        "alpha", "Steepness of the sigmoid", (1, 10, 100, 500, 1000), "Table 5", "steepness"
    ),
    "bound": Parameter("r", "Lower bound for full coverage", (0.1, 0.5, 1, 5, 50), "Table 6", "r"),
    "n_bins": Parameter("M", "Number of bins", (10, 50, 100, 500, 1000), "Table 7", "n_bins"),
}
#: Factors of the steepness of layers other than the deepest, whose readings have another scale.
_FACTORS = (0.01, 0.1, 1, 10, 100)


def layers(data: AnalysisData, options: Options) -> Finding:
    """AUROC and FPR@95 of all combinations of layers; of NAC+ also of the parts of its score."""
    plus, study = data.config.rule == PLUS, MetricStudy(data, options, "layers")
    metrics_of: Any = PlusScores(data).metrics if plus else NACScores(data).metrics
    for chosen in subsets(data.early_layers):
        settings = {name: data.settings[name] for name in chosen}
        study.found["+".join(chosen)] = metrics_of(settings)
    deepest = ["+".join(data.early_layers[: n + 1]) for n in range(len(data.early_layers))]
    heads, whole, values = text_columns("Layers"), deepest[-1], study.values()
    if not plus:
        paper = study.paper("Table 4", "layers")  # its rows are in the same order
        pairs = zip(deepest, chain(paper, repeat("")))
        rows: list[Any] = [([name], study.found[name], row) for name, row in pairs]
        title = "From the deepest layer to all layers"
        study.table(title, heads, rows, paper=paper, ours=[len(rows) - 1])
    rows = [([name], line) for name, line in study.found.items()]
    title = "Every combination of early layers" if plus else "Every combination"
    study.table(title, heads, rows, ours=[len(rows) - 1])
    study.ranked_bars(f"{study.title} {{}} by layers", {name: name for name in values}, whole)
    best = max(values, key=values.__getitem__)
    top = f"The best combination on test data is {best} ({values[best]:.2f} %)."
    if values[best] == values[whole]:
        top = "No combination is better than all layers."
    if plus:
        alone = _parts_alone(data, study)
        first = max(alone, key=alone.__getitem__)
        return study.finding(
            "layers", "Which layers and parts NAC+ needs",
            f"With all early layers, {study.word} AUROC is {values[whole]:.2f} %. {top} Of the "
            f"parts alone, {first} is best ({alone[first]:.2f} %).",
            {"best": best.split("+"), "parts": alone},
        )  # fmt: skip
    steps = [values[name] for name in deepest]
    trend = "rises" if sorted(set(steps)) == steps else "does not rise"
    return study.finding(
        "layers", "Which layers to combine",
        f"From the deepest layer alone ({steps[0]:.2f} %) to all layers ({steps[-1]:.2f} %), "
        f"{study.word} AUROC {trend} with every layer that is added. {top}",
        {"best": best.split("+"), "all": study.found[whole]},
    )  # fmt: skip


def _parts_alone(data: AnalysisData, study: MetricStudy) -> dict[str, float]:
    """Measure each part of the score of NAC+ alone; returns their AUROCs."""
    scores, early = PlusScores(data), data.early_layers
    names = {LOGITS: "logits (GEN)"}
    for head in (n for n in data.layers if n not in early):
        names.update({ALIGNMENT: f"{head} (alignment)", DISTANCE: distance_of(head)})
    names.update({n: f"{n} (coverage)" for n in early})
    names.update({distance_of(n): distance_of(n) for n in early})
    wide = [n for n in data.layers if data.fitting.fit[n].activation.shape[1] > MAX_NEURONS]
    left_out = {*map(distance_of, wide)}
    left_out |= {ALIGNMENT, DISTANCE} if {*wide} - {*early} else set()
    parts = {names[p]: scores.metrics(early, p) for p in names if p not in left_out}
    study.table("Parts alone", text_columns("Part"), [([name], m) for name, m in parts.items()])
    study.found.update(parts)
    return {name: metrics[study.group]["AUROC"] for name, metrics in parts.items()}


def subsets(names: Sequence[str]) -> list[tuple[str, ...]]:
    """All combinations of layers, small ones first, in the order of the layers."""
    sizes = range(1, len(names) + 1)
    if len(names) <= _MOST_SUBSETS:
        return [chosen for size in sizes for chosen in combinations(names, size)]
    some = [tuple(names[:n]) for n in sizes]
    some += [chosen for n in (1, len(names) - 1) for chosen in combinations(names, n)]
    return sorted(dict.fromkeys(some), key=len)


def weighted(data: AnalysisData, options: Options) -> Finding:
    """Layer weights out of 0.2, ..., 1.0, searched on validation data, against equal weights."""
    if len(data.layers) < 2:
        raise NACError(f"weights need at least two layers, and NAC has only {data.layers} here.")
    study, fitting, scores = MetricStudy(data, options, "weights"), data.fitting, NACScores(data)
    equal = {name: replace(used, weight=1.0) for name, used in data.settings.items()}
    result = search(
        fitting.fit, fitting.id_val, fitting.ood_val, layers=equal,
        sweep={name: {"weight": PAPER_SPACE["weight"]} for name in equal},
        strategy="grid" if len(equal) <= _MOST_GRID else "random", leave_out=False, guard=None,
        surrogate=fitting.surrogate, seed=options.seed, progress=options.progress,
    )  # fmt: skip
    before, after = scores.metrics(equal), scores.metrics(result.layers)
    study.found = {"equal weights": before, "searched weights": after}
    change = {n: {m: f"{after[n][m] - before[n][m]:+.2f}" for m in TABLE_METRICS} for n in after}
    names = data.names("near", "far")
    titles = dict(zip(names, names)) | {n: f"{GROUP_WORDS[n]} mean" for n in data.groups}
    rows = [([title], (before[n], after[n], change[n])) for n, title in titles.items()]
    columns = dict(enumerate([*study.found, "Difference"]))
    study.table("", text_columns("OOD set"), rows, columns=columns)
    weights = {name: used.weight for name, used in result.layers.items()}
    chosen = [[name, f"{weight:g}"] for name, weight in weights.items()]
    study.tables.append(Table("Weights", [*text_columns("Layer"), Column("Weight")], chosen))
    for m in TABLE_METRICS:
        bars = [(n, [before[n][m], after[n][m]]) for n in names]
        study.figures.append(tables.metric_bars(m, f"{m} by OOD set", list(study.found), bars))
    study.notes.append(
        f"Of {result.evaluated} combinations of weights, the one with the highest AUROC of ID "
        f"against OOD validation data is used ({100 * result.best.auroc:.2f} %); ties go to the "
        "first, which has larger weights. The other settings are unchanged."
    )
    paper = study.paper("Table 17", "weights", dataset=FAR)
    if paper:
        printed: list[Any] = [([w], {}, w) for w in paper]
        study.table("Published", text_columns("Weights"), printed, columns={}, paper=paper)
    main = change[study.group]
    return study.finding(
        "weighted", "Weighted layers",
        f"Weights searched on validation data ({', '.join(map(' '.join, chosen))}) change "
        f"{study.word} AUROC by {main['AUROC']} points and FPR@95 by {main['FPR@95']}.",
        {"weights": weights, "candidates": result.evaluated},
    )  # fmt: skip


def params(data: AnalysisData, options: Options) -> Finding:
    """AUROC and FPR@95 while one parameter of one layer changes."""
    study = MetricStudy(data, options, "layer", "parameter", "value", "full_count", "layers")
    study.notes.append("When M changes, O* stays as it is, so r changes with it.")
    scores, deepest, spans = NACScores(data), data.layers[0], []
    sensitivity: list[list[Entry]] = []
    for layer, (name, parameter) in product(data.layers, PARAMETERS.items()):
        changed = dict(_changes(data, layer, name, options))
        scores.prepare({layer: list(changed.values())})
        rows, alone, joint = [], {}, {}
        for value, config in changed.items():
            means = {}
            for way, others in (("alone", {}), ("all", data.settings)):
                metrics = scores.metrics({**others, layer: config})
                study.found[layer, name, value, config.full_count, way] = metrics
                means[way] = metrics[study.group]
            alone[value], joint[value] = means["alone"]["AUROC"], means["all"]["AUROC"]
            counted = [str(config.full_count)] if name == "bound" else []
            rows.append(([f"{value:g}", *counted], means, f"{value:g}"))
        used = next(value for value, config in changed.items() if config == data.settings[layer])
        best = max(joint, key=joint.__getitem__)
        aurocs = (joint[used], min(joint.values()), joint[best])
        sensitivity.append([layer, parameter.symbol, f"{used:g}", *aurocs, f"{best:g}"])
        if layer != deepest:
            continue
        title = f"{parameter.meaning}, {parameter.symbol}"
        paper = study.paper(parameter.table, parameter.axis)
        heads = text_columns(parameter.symbol) + [Column("O*")] * (name == "bound")
        ways = {"alone": f"{deepest} alone", "all": "All layers"}
        ours = [list(changed).index(used)]
        study.table(f"{title}: {study.word}", heads, rows, columns=ways, paper=paper, ours=ours)
        curves = {f"{deepest} alone": alone, "all layers": joint}
        series = [Series(title, [*curve.items()]) for title, curve in curves.items()]
        if paper:
            printed = [(float(value), row["AUROC"].mean) for value, row in paper.items()]
            series.append(Series("paper", printed, printed=True))
        study.figures.append(Lines(
            name, title, f"{parameter.symbol} of {deepest} (log scale)",
            f"{study.word} AUROC, %", series, log_x=True, mark=used,
        ))  # fmt: skip
        best = max(alone, key=alone.__getitem__)
        span = f"{min(alone.values()):.1f} to {alone[best]:.1f} %"
        spans.append(f"{parameter.symbol} ({span}, best at {best:g})")
    numbers = ("In use", "AUROC in use", "Lowest", "Highest", "Best value")
    title = f"Every layer: {study.word} AUROC of all layers while one parameter changes"
    heads = [*text_columns("Layer", "Parameter"), *map(Column, numbers)]
    study.tables.append(Table(title, heads, sensitivity))
    text = f"With {deepest} alone, {study.word} AUROC depends on "
    return study.finding(
        "params", "Parameters alpha, r and M", f"{text}{spans[0]}, {spans[1]} and {spans[2]}.",
        {"default": scores.metrics(data.settings)},
    )  # fmt: skip


def _changes(
    data: AnalysisData, layer: str, parameter: str, options: Options
) -> Iterable[tuple[float, LayerConfig]]:
    """The settings of a layer with one parameter changed, by value; those in use among them."""
    used, n = data.settings[layer], data.fitting.fit.n_samples
    values: Sequence[float] = PARAMETERS[parameter].values
    if parameter == "steepness" and layer != data.layers[0]:  # other layers have another scale
        values = [used.steepness * factor for factor in _FACTORS]
    values = getattr(options, "bounds" if parameter == "bound" else parameter) or values
    if parameter != "bound":
        for value in sorted({*values, getattr(used, parameter)}):
            yield value, replace(used, **{parameter: value})
        return
    if min(values) <= 0:
        raise NACError(f"`bounds` must be above 0, got {min(values):g}.")
    counts = {max(1, round(r * n / used.n_bins)): float(r) for r in values}
    counts[used.full_count] = used.full_count * used.n_bins / n
    for count, r in sorted(counts.items()):
        yield r, replace(used, full_count=count)


def samples(data: AnalysisData, options: Options) -> Finding:
    """AUROC and FPR@95 over the number of training samples, drawn at random and repeatedly."""
    wrong = [share for share in options.shares if not 0 < share <= 1]
    if wrong:
        raise NACError(f"`shares` must be above 0 and at most 1, got {wrong}.")
    whole_number("`repeats`", options.repeats, 1)
    plus, total = data.config.rule == PLUS, len(data.train_rows)
    study = MetricStudy(data, options, "samples", "share", "way", "repeat")
    shares = {max(1, round(share * total)): share for share in sorted(options.shares)}
    # one draw is enough if it takes all samples
    draws = [(n, d) for n in shares for d in range(1 if n >= total else options.repeats)]
    for n, draw in bar(draws, "samples", options.progress):
        rng = np.random.RandomState([options.seed, n, draw])
        drawn = data.train.rows(np.sort(rng.permutation(total)[:n]))
        for way, metrics in (_plus_on if plus else _nac_on)(data, drawn):
            study.found[n, shares[n], way, draw] = metrics
    ways = list(dict.fromkeys(way for _, _, way, _ in study.found))

    def summary(n: int, way: str, name: str, metric: str) -> Value:
        drawn = [m for at, m in study.found.items() if (at[0], at[2]) == (n, way)]
        return Value.of([metrics[name][metric] for metrics in drawn])

    columns = {
        (way, name): title if plus else f"{title}, {way}"
        for way, (name, title) in product(ways, data.groups.items())
    }
    rows = [
        ([f"{n:,} ({100 * share:g} %)"],
         {at: {m: summary(n, *at, m) for m in TABLE_METRICS} for at in columns})
        for n, share in shares.items()
    ]  # fmt: skip
    study.table("", text_columns("Training samples"), rows, columns=columns)
    for m in TABLE_METRICS:
        lines = [Series(way, [(n, *summary(n, way, study.group, m)) for n in shares])
                 for way in ways]  # fmt: skip
        labels = f"{study.title} {m}", "training samples (log scale)", f"{study.word} {m}, %"
        study.figures.append(Lines(tables.metric_key(m), *labels, lines, log_x=True))
    least, most, means = min(shares), max(shares), []
    for way in ways:
        few, many = (summary(n, way, study.group, "AUROC").mean for n in (least, most))
        means.append(f"{few:.2f} % and {many:.2f} %" + ("" if plus else f" ({way})"))
    study.notes.append("Mean \u00b1 sample standard deviation over random draws.")
    if not plus:
        study.notes[-1] += (
            f" NAC's settings were chosen for {data.fitting.fit.n_samples} samples. 'O* kept' "
            "leaves them as they are; 'r kept' scales O* with the number of samples, so that the "
            "same share of samples fills a bin."
        )
    return study.finding(
        "samples", "Number of training samples",
        f"With {least:,} and with {most:,} training samples ({100 * shares[least]:g} % and "
        f"{100 * shares[most]:g} % of those read), {study.word} AUROC is {' or '.join(means)}.",
        {"training_samples": total, "repeats": options.repeats},
    )  # fmt: skip


def _plus_on(data: AnalysisData, fit: Readings) -> Iterator[tuple[str, Metrics]]:
    yield "NAC+", PlusScores(data, fit).metrics(data.early_layers)


def _nac_on(data: AnalysisData, fit: Readings) -> Iterator[tuple[str, Metrics]]:
    """With O* as it is, and scaled with the number of samples, which keeps the paper's r."""
    scores, ratio = NACScores(data, fit), fit.n_samples / data.fitting.fit.n_samples
    scaled = {
        name: replace(used, full_count=max(1, round(used.full_count * ratio)))
        for name, used in data.settings.items()
    }
    scores.prepare({name: [used, scaled[name]] for name, used in data.settings.items()})
    yield "O* kept", scores.metrics(data.settings)
    yield "r kept", scores.metrics(scaled)
