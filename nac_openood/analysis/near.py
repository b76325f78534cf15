"""The near-OOD table: NAC and other methods on data that is close to the training data."""

from __future__ import annotations

from typing import Mapping, Sequence

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.methods import MethodScores, feature_methods, method_scores
from nac_openood.analysis.options import Options
from nac_openood.analysis.scores import Metrics, set_metrics
from nac_openood.analysis.tabulate import (
    FPR_NOTE,
    TABLE_METRICS,
    Beside,
    beside,
    metric_entries,
    metric_heads,
    ranked_bars,
    records_of,
    text_heads,
)
from nac_openood.benchmark.methods.table import NAC
from nac_openood.benchmark.run.metrics import NEAR
from nac_openood.errors import NACError
from nac_openood.tables import Entry, Table


def near(data: AnalysisData, options: Options) -> Finding:
    """AUROC and FPR@95 of methods on the near-OOD sets."""
    if not data.names("near"):
        raise NACError("there is no near-OOD set: pass `near`.")
    tried = method_scores(data, options, options.methods or feature_methods())
    worked = [each for each in tried if not each.problem]
    if not worked:
        raise NACError(f"no method could be run: {_problems(tried)[0]}")
    found = {each.method.name: set_metrics(data, each.scores) for each in worked}
    order = sorted(worked, key=lambda each: -found[each.method.name][NEAR]["AUROC"])
    paper = beside(data, options.against, "Table 15", "method", dataset=NEAR)
    shown = {each.method.title: found[each.method.name][NEAR] for each in order}
    ours = [each.method.title for each in order if each.method.rule is not None]
    return Finding(
        "near", "Near-OOD detection", _sentence(order, found),
        [_table(data, order, found, paper)],
        [
            ranked_bars(metric, f"Near-OOD {metric}, mean over sets", shown, ours)
            for metric in TABLE_METRICS
        ],
        records_of(found, "method"),
        {"problems": {each.method.name: each.problem for each in tried if each.problem}},
        [
            FPR_NOTE,
            f"Baselines are set up on the {len(data.train_rows):,} training samples that were "
            "read. Methods that need the network itself are in nac_openood.compare only.",
            *paper.notes,
            *_problems(tried),
        ],
    )  # fmt: skip


def _table(
    data: AnalysisData, order: Sequence[MethodScores], found: Mapping[str, Metrics], paper: Beside
) -> Table:
    names = [NEAR, *data.names("near")]
    heads = metric_heads(["Mean", *names[1:]])
    rows: list[list[Entry]] = []
    for each in order:
        entries = metric_entries(found[each.method.name], names)
        rows.append([each.method.title, *entries, *paper.entries(each.method.name)])
    ours = [row for row, each in enumerate(order) if each.method.rule is not None]
    return Table("", [*text_heads("Method"), *heads, *paper.heads()], rows, ours)


def _sentence(order: Sequence[MethodScores], found: Mapping[str, Metrics]) -> str:
    names = [each.method.name for each in order]
    best = order[0]
    value = found[best.method.name][NEAR]["AUROC"]
    text = f"Of {len(order)} methods, {best.method.title} has the highest near-OOD AUROC"
    text += f" ({value:.2f} %)"
    if NAC in names and names[0] != NAC:
        own = found[NAC][NEAR]["AUROC"]
        text += f"; NAC is number {names.index(NAC) + 1} ({own:.2f} %)"
    return f"{text}."


def _problems(tried: Sequence[MethodScores]) -> list[str]:
    return [f"{each.method.title} has no result: {each.problem}" for each in tried if each.problem]
