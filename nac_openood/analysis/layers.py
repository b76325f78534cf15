"""Which layers to combine: every subset of them, with the settings in use."""

from __future__ import annotations

from itertools import combinations
from typing import Any, Mapping, Sequence

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.options import Options
from nac_openood.analysis.scores import TestScores
from nac_openood.analysis.tabulate import (
    FPR_NOTE,
    TABLE_METRICS,
    beside,
    group_entries,
    group_heads,
    ranked_bars,
    records_of,
    text_heads,
)
from nac_openood.benchmark.run.metrics import GROUP_NAMES, GROUP_WORDS
from nac_openood.tables import Entry, Table

#: With more layers, only combinations of the deepest ones, single layers and all but one.
_MOST_SUBSETS = 6


def layers(data: AnalysisData, options: Options) -> Finding:
    """AUROC and FPR@95 of all combinations of layers."""
    scores = TestScores(data)
    found = {
        "+".join(chosen): scores.metrics({name: data.settings[name] for name in chosen})
        for chosen in subsets(data.layers)
    }
    paths = ["+".join(data.layers[: n + 1]) for n in range(len(data.layers))]
    paper = beside(data, options.against, "Table 4", "layers")
    heads = [*text_heads("Layers"), *group_heads(data)]
    lines: list[list[Entry]] = []
    printed: list[str] = []
    for path in paths:
        printed.append(f"layer{4 - len(printed)}")
        entries = group_entries(data, found[path])
        lines.append([path, *entries, *paper.entries("+".join(printed))])
    title = "From the deepest layer to all layers"
    table = Table(title, [*heads, *paper.heads()], lines, ours=[len(paths) - 1])
    rows = [[chosen, *group_entries(data, line)] for chosen, line in found.items()]
    every = Table("Every combination", heads, rows, ours=[len(rows) - 1])
    group = data.main_group
    shown = {chosen: line[group] for chosen, line in found.items()}
    values = {chosen: line["AUROC"] for chosen, line in shown.items()}
    best = max(values, key=lambda chosen: values[chosen])
    return Finding(
        "layers",
        "Which layers to combine",
        _sentence(values, best, paths, GROUP_WORDS[group]),
        [table, every],
        [
            ranked_bars(metric, f"{GROUP_NAMES[group]} {metric} by layers", shown, paths[-1:])
            for metric in TABLE_METRICS
        ],
        records_of(found, "layers"),
        {"best": best.split("+"), "all": found[paths[-1]]},
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


def _sentence(values: Mapping[str, float], best: str, paths: Sequence[str], group: str) -> str:
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
    return f"{text} The best combination on test data is {best} ({values[best]:.2f} %)."
