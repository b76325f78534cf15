"""Which layers to combine: every subset of them, with the settings in use."""

from __future__ import annotations

from itertools import combinations
from typing import Any, Sequence

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.finding import BarGroups, ColumnHead, DataTable, Entry, Finding
from nac_openood.analysis.options import Options
from nac_openood.analysis.scores import TestScores, main_group
from nac_openood.analysis.tabulate import (
    FPR_NOTE,
    TABLE_METRICS,
    beside,
    group_entries,
    group_heads,
    metric_bars,
    records_of,
)
from nac_openood.benchmark.run.metrics import GROUP_NAMES, GROUP_WORDS

#: With more layers, only combinations of the deepest ones, single layers and all but one.
_MOST_SUBSETS = 6


def layers(data: AnalysisData, options: Options) -> Finding:
    """AUROC and FPR@95 of all combinations of layers."""
    scores = TestScores(data)
    found = {
        chosen: scores.metrics({name: data.settings[name] for name in chosen})
        for chosen in subsets(data.layers)
    }
    paths = [tuple(data.layers[: n + 1]) for n in range(len(data.layers))]
    paper = beside(data, options.against, "Table 4", "layers")
    heads = [ColumnHead("Layers", number=False), *group_heads(data)]
    lines: list[list[Entry]] = []
    for path in paths:
        printed = "+".join(f"layer{4 - depth}" for depth in range(len(path)))
        entries = group_entries(data, found[path])
        lines.append(["+".join(path), *entries, *paper.entries(printed)])
    title = "From the deepest layer to all layers"
    table = DataTable(title, [*heads, *paper.heads()], lines, ours=[len(paths) - 1])
    rows = [["+".join(chosen), *group_entries(data, line)] for chosen, line in found.items()]
    every = DataTable("Every combination", heads, rows, ours=[len(rows) - 1])
    group = main_group(data)
    values = {chosen: line[group]["AUROC"] for chosen, line in found.items()}
    best = max(values, key=lambda chosen: values[chosen])
    return Finding(
        "layers",
        "Which layers to combine",
        _sentence(values, best, paths, GROUP_WORDS[group]),
        [table, every],
        [_bars(found, group, metric) for metric in TABLE_METRICS],
        [r for c, line in found.items() for r in records_of(line, layers="+".join(c))],
        {"best": list(best), "all": found[tuple(data.layers)]},
        [FPR_NOTE, *paper.notes],
    )


def subsets(names: Sequence[str]) -> list[tuple[str, ...]]:
    """All combinations of layers, small ones first, in the order of the layers."""
    sizes: Any = range(1, len(names) + 1)
    if len(names) <= _MOST_SUBSETS:
        return [chosen for size in sizes for chosen in combinations(names, size)]
    some = {tuple(names[:n]): None for n in sizes}
    some.update({chosen: None for n in (1, len(names) - 1) for chosen in combinations(names, n)})
    return sorted(some, key=len)


def _sentence(
    values: dict[tuple[str, ...], float],
    best: tuple[str, ...],
    paths: Sequence[tuple[str, ...]],
    group: str,
) -> str:
    whole = values[paths[-1]]
    steps = [values[path] for path in paths]
    rising = all(b >= a for a, b in zip(steps, steps[1:]))
    trend = "rises with every layer that is added" if rising else "does not rise with every layer"
    text = (
        f"From the deepest layer alone ({steps[0]:.2f} %) to all layers ({whole:.2f} %), {group} "
        f"AUROC {trend}."
    )
    if best == paths[-1]:
        return f"{text} No combination is better than all layers."
    return f"{text} The best combination on test data is {'+'.join(best)} ({values[best]:.2f} %)."


def _bars(found: Any, group: str, metric: str) -> BarGroups:
    rows = [("+".join(chosen), [line[group][metric]]) for chosen, line in found.items()]
    rows.sort(key=lambda row: row[1][0], reverse=metric == "AUROC")
    whole: tuple[str, ...] = max(found, key=lambda chosen: len(chosen))
    title = f"{GROUP_NAMES[group]} {metric} by layers"
    return metric_bars(metric, title, [metric], rows, ours=["+".join(whole)])
