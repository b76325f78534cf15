"""Which layers to combine: every subset of them, and searched weights against equal ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Sequence

from nac_openood.analysis import tabulate
from nac_openood.analysis.data import AnalysisData, Options
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.scoring import TestScores
from nac_openood.benchmark.run.results import FAR, GROUP_WORDS
from nac_openood.errors import NACError
from nac_openood.search.run import PAPER_SPACE, search
from nac_openood.tables import Column, Table

#: With more layers, only the deepest ones together, single layers, and all but one are tried.
_MOST_SUBSETS = 6
#: A grid over the weights of more layers would take long; then they are searched at random.
_MOST_GRID = 5


def layers(data: AnalysisData, options: Options) -> Finding:
    """AUROC and FPR@95 of all combinations of layers, with the settings in use."""
    scores, group = TestScores(data), data.main_group
    found = {
        "+".join(chosen): scores.metrics({name: data.settings[name] for name in chosen})
        for chosen in subsets(data.layers)
    }
    depths = range(1, len(data.layers) + 1)
    deepest = ["+".join(data.layers[:depth]) for depth in depths]
    printed = ["+".join(f"layer{4 - n}" for n in range(depth)) for depth in depths]
    paper = tabulate.paper_rows(data, options.against, "Table 4", "layers")
    tables = [
        tabulate.metric_table(
            "From the deepest layer to all layers", ["Layers"], data.groups,
            [([name], found[name], row) for name, row in zip(deepest, printed)],
            paper=paper, ours=[len(deepest) - 1],
        ),
        tabulate.metric_table(
            "Every combination", ["Layers"], data.groups,
            [([name], line, "") for name, line in found.items()], ours=[len(found) - 1],
        ),
    ]  # fmt: skip
    values = {name: line[group]["AUROC"] for name, line in found.items()}
    best, steps = max(values, key=values.__getitem__), [values[name] for name in deepest]
    rising = all(b >= a for a, b in zip(steps, steps[1:]))
    trend = "rises with every layer that is added" if rising else "does not rise with every layer"
    sentence = (
        f"From the deepest layer alone ({steps[0]:.2f} %) to all layers ({steps[-1]:.2f} %), "
        f"{GROUP_WORDS[group]} AUROC {trend}. "
    )
    if best == deepest[-1]:
        sentence += "No combination is better than all layers."
    else:
        sentence += f"The best combination on test data is {best} ({values[best]:.2f} %)."
    shown = {name: line[group] for name, line in found.items()}
    return Finding(
        "layers", "Which layers to combine", sentence, tables,
        tabulate.ranked_bars(f"{data.groups[group]} {{}} by layers", shown, deepest[-1]),
        tabulate.records_of(found, "layers"), {"best": best.split("+"), "all": found[deepest[-1]]},
        [tabulate.FPR_NOTE, *paper.notes],
    )  # fmt: skip


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
        raise NACError(
            f"weights need at least two layers, and NAC has {data.layers} here. Use settings with "
            "more layers."
        )
    equal = {name: replace(used, weight=1.0) for name, used in data.settings.items()}
    fitting, group = data.fitting, data.main_group
    result = search(
        fitting.fit, fitting.id_val, fitting.ood_val, layers=equal,
        sweep={name: {"weight": PAPER_SPACE["weight"]} for name in equal},
        strategy="grid" if len(equal) <= _MOST_GRID else "random", leave_out=False, guard=None,
        surrogate=fitting.surrogate, seed=options.seed, progress=options.progress,
    )  # fmt: skip
    scores = TestScores(data)
    found = {
        "equal weights": scores.metrics(equal),
        "searched weights": scores.metrics(result.layers),
    }
    before, after = found.values()
    weights = {name: used.weight for name, used in result.layers.items()}
    names = data.names("near", "far")
    rows: list[tabulate.MetricRow] = []
    for name in (*names, *data.groups):
        title = f"{GROUP_WORDS[name]} mean" if name in GROUP_WORDS else name
        gain = {m: f"{after[name][m] - before[name][m]:+.2f}" for m in tabulate.TABLE_METRICS}
        rows.append(([title], {0: before[name], 1: after[name], 2: gain}, ""))
    columns = dict(enumerate([*found, "Difference"]))
    chosen = [[name, f"{weight:g}"] for name, weight in weights.items()]
    tables = [
        tabulate.metric_table("", ["OOD set"], columns, rows),
        Table("Weights", [Column("Layer", number=False), Column("Weight")], chosen),
    ]
    paper = tabulate.paper_rows(data, options.against, "Table 17", "weights", dataset=FAR)
    if paper.rows:
        printed: list[tabulate.MetricRow] = [([way], {}, way) for way in paper.rows]
        tables.append(tabulate.metric_table("Published", ["Weights"], {}, printed, paper=paper))
    listed = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
    change = {m: after[group][m] - before[group][m] for m in tabulate.TABLE_METRICS}
    return Finding(
        "weighted", "Weighted layers",
        f"Weights searched on validation data ({listed}) change {GROUP_WORDS[group]} AUROC by "
        f"{change['AUROC']:+.2f} points and FPR@95 by {change['FPR@95']:+.2f}.",
        tables,
        [
            tabulate.metric_bars(m, f"{m} by OOD set", list(found),
                        [(n, [before[n][m], after[n][m]]) for n in names])
            for m in tabulate.TABLE_METRICS
        ],
        tabulate.records_of(found, "weights"), {"weights": weights, "candidates": result.evaluated},
        [
            tabulate.FPR_NOTE,
            f"{result.evaluated} combinations of weights were tried; the one with the best AUROC "
            f"of ID against OOD validation data ({100 * result.best.auroc:.2f} %) is used. Of "
            "equally good ones it is the first, with large weights. The other settings stay as "
            "they are.",
            *paper.notes,
        ],
    )  # fmt: skip
