"""Studies of NAC+ on stored readings: its layers, its parts, and how many samples it needs."""

from __future__ import annotations

from typing import Iterator, Mapping, Optional, Sequence

import torch
from torch import Tensor

from nac_openood.analysis.ablations import drawn_shares, subsets
from nac_openood.analysis.data import AnalysisData, Options
from nac_openood.analysis.finding import Finding, Metrics, MetricStudy
from nac_openood.benchmark.run.results import Value, metrics_by_set
from nac_openood.core.fusion import ALIGNMENT, DISTANCE, LOGITS
from nac_openood.core.plus import NACPlus, distance_of
from nac_openood.core.plus_layer import MAX_NEURONS
from nac_openood.core.reading import BatchReadings, logits_in
from nac_openood.detector.readings import Readings, fit_rule
from nac_openood.tables import Lines, Series, metric_key, text_columns


class PlusScores:
    """Scores of the test sets by NAC+ with any of its layers, equal to those of a detector.

    Args:
        data: the readings.
        fit: readings to fit on; None takes the fitting subset.
    """

    def __init__(self, data: AnalysisData, fit: Optional[Readings] = None) -> None:
        self._data, self._fit = data, fit or data.fitting.fit

    def metrics(self, layers: Sequence[str], part: Optional[str] = None) -> Metrics:
        """The metrics of some early layers with all else, or of one part of the score alone."""
        data = self._data
        left_out = {*data.early_layers} - {*layers}
        rule = NACPlus({n: config for n, config in data.settings.items() if n not in left_out})

        def read(readings: Readings) -> Iterator[BatchReadings]:
            for batch in readings.batches(data.run.study.batch_size):  # equal ones, equal scores
                yield BatchReadings(logits_in(batch), {n: batch[n] for n in rule.layers})

        fit_rule(rule, read(self._fit))
        rule.calibrate(map(rule.parts, read(data.fitting.id_val)))

        def score(parts: Mapping[str, Tensor]) -> Tensor:
            return rule.combine(parts) if part is None else rule.fusion().used(parts)[part]

        scores = {
            name: torch.cat([score(rule.parts(batch)).cpu() for batch in read(readings)]).numpy()
            for name, readings in data.scored.items()
        }
        return metrics_by_set(scores, data.roles, data.accuracy)


def plus_layers(data: AnalysisData, options: Options) -> Finding:
    """AUROC and FPR@95 of all combinations of layers, and of each part of the score alone."""
    scores, study, every = PlusScores(data), MetricStudy(data, options, "layers"), data.early_layers
    chosen = {"+".join(names): names for names in subsets(every)}
    study.found = {name: scores.metrics(names) for name, names in chosen.items()}
    rows = [([name], line) for name, line in study.found.items()]
    study.table(
        "Early layers, each with all else", text_columns("Layers"), rows, ours=[len(rows) - 1]
    )
    names = {LOGITS: "logits (GEN)"}
    for head in (n for n in data.layers if n not in every):
        names.update({ALIGNMENT: f"{head} (alignment)", DISTANCE: distance_of(head)})
    names.update({n: f"{n} (coverage)" for n in every})
    names.update({distance_of(n): distance_of(n) for n in every})
    wide = [n for n in data.layers if data.fitting.fit[n].activation.shape[1] > MAX_NEURONS]
    left_out = {*map(distance_of, wide)}
    left_out |= {ALIGNMENT, DISTANCE} if {*wide} - {*every} else set()
    parts = {p: scores.metrics(every, p) for p in names if p not in left_out}
    study.table("Parts alone", text_columns("Part"), [([names[p]], m) for p, m in parts.items()])
    study.ranked_bars(f"{study.title} {{}} by layers", {n: n for n in chosen}, "+".join(every))
    values, whole = study.values(), study.values()["+".join(every)]
    best = max(values, key=values.__getitem__)
    alone = {names[part]: line[study.group]["AUROC"] for part, line in parts.items()}
    first = max(alone, key=alone.__getitem__)
    top = f"{best} is best on test data ({values[best]:.2f} %)"
    study.found.update({names[part]: line for part, line in parts.items()})
    return study.finding(
        "layers", "Which layers and parts NAC+ needs",
        f"With all early layers, {study.word} AUROC is {whole:.2f} %; "
        f"{'no combination is better' if values[best] == whole else top}. "
        f"Of the parts alone, {first} is best ({alone[first]:.2f} %).",
        {"best": best.split("+"), "parts": alone},
    )  # fmt: skip


def plus_samples(data: AnalysisData, options: Options) -> Finding:
    """AUROC and FPR@95 over the number of training samples, drawn at random and repeatedly."""
    study, total = MetricStudy(data, options, "samples", "repeat"), len(data.train_rows)
    shares, draws = drawn_shares(total, options)
    for n, draw, chosen in draws:
        scores = PlusScores(data, data.train.rows(chosen))
        study.found[n, draw] = scores.metrics(data.early_layers)

    def summary(n: int, name: str, metric: str) -> Value:
        return Value.of([m[name][metric] for at, m in study.found.items() if at[0] == n])

    metrics = ("AUROC", "FPR@95")
    rows = [
        ([f"{n:,} ({100 * share:g} %)"],
         {name: {m: summary(n, name, m) for m in metrics} for name in data.groups})
        for n, share in shares.items()
    ]  # fmt: skip
    study.table("", text_columns("Training samples"), rows)
    for m in metrics:
        line = Series("NAC+", [(n, *summary(n, study.group, m)) for n in shares])
        labels = "training samples (log scale)", f"{study.word} {m}, %"
        title = f"{study.title} {m}"
        study.figures.append(Lines(metric_key(m), title, *labels, [line], log_x=True))
    study.notes.append("Mean \u00b1 sample standard deviation over random draws.")
    few, many = (summary(n, study.group, "AUROC").mean for n in (min(shares), max(shares)))
    return study.finding(
        "samples", "Number of training samples",
        f"With {min(shares):,} and with {max(shares):,} training samples, {study.word} AUROC is "
        f"{few:.2f} % and {many:.2f} %.",
        {"training_samples": total, "repeats": options.repeats},
    )  # fmt: skip
