"""NAC and other methods on near-OOD data, scored from readings without running the network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from nac_openood.analysis import tabulate
from nac_openood.analysis.data import AnalysisData, Options
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.scoring import TestScores
from nac_openood.benchmark.methods.backends import scorers
from nac_openood.benchmark.methods.scorer import MethodInputs
from nac_openood.benchmark.methods.table import METHODS, NAC, Absent, Method, chosen_methods
from nac_openood.benchmark.run.network import FeatureBatches, Features, checked_scores
from nac_openood.benchmark.run.results import NEAR, metrics_by_set
from nac_openood.detector.batches import bar
from nac_openood.detector.readings import Readings
from nac_openood.errors import NACError, error_text
from nac_openood.search.advise import alternatives


def near(data: AnalysisData, options: Options) -> Finding:
    """AUROC and FPR@95 of methods on the near-OOD sets.

    NAC has the settings in use; NAC+ is fitted on the same samples. Baselines are set up on all
    training samples that were read, with the search that `compare` does.
    """
    if not data.names("near"):
        raise NACError("there is no near-OOD set: pass `near`.")
    default = [row.name for row in METHODS.values() if row.needs == "features" or row.rule]
    methods = {row.name: row for row in chosen_methods(options.methods or default)}
    make = scorers(
        [row for row in methods.values() if row.needs == "features"], options.backend,
        say=options.say,
    )  # fmt: skip
    found, problems = {}, {}
    for name, method in bar(list(methods.items()), "methods", options.progress):
        try:
            scores = _scores(data, method, make, options)
        except Exception as error:  # third-party methods may raise anything
            problems[name] = error_text(error)
        else:
            found[name] = metrics_by_set(scores, data.roles, data.accuracy)
    failed = [f"{methods[name].title} has no result: {why}" for name, why in problems.items()]
    if not found:
        raise NACError(f"no method could be run: {failed[0]}")
    order = sorted(found, key=lambda name: -found[name][NEAR]["AUROC"])
    paper = tabulate.paper_rows(data, options.against, "Table 15", "method", dataset=NEAR)
    best = order[0]
    sentence = (
        f"Of {len(order)} methods, {methods[best].title} has the highest near-OOD AUROC "
        f"({found[best][NEAR]['AUROC']:.2f} %)"
    )
    if NAC in order and best != NAC:
        own = found[NAC][NEAR]["AUROC"]
        sentence += f"; NAC is number {order.index(NAC) + 1} ({own:.2f} %)"
    table = tabulate.metric_table(
        "", ["Method"], {NEAR: "Mean", **{name: name for name in data.names("near")}},
        [([methods[name].title], found[name], name) for name in order], paper=paper,
        ours=[row for row, name in enumerate(order) if methods[name].rule is not None],
    )  # fmt: skip
    shown = {methods[name].title: found[name][NEAR] for name in order}
    ours = [methods[name].title for name in order if methods[name].rule is not None]
    return Finding(
        "near", "Near-OOD detection", f"{sentence}.", [table],
        tabulate.ranked_bars("Near-OOD {}, mean over sets", shown, *ours),
        tabulate.records_of(found, "method"), {"problems": problems},
        [
            tabulate.FPR_NOTE,
            f"Baselines are set up on the {len(data.train_rows):,} training samples that were "
            "read. Methods that need the network itself are in nac_openood.compare only.",
            *paper.notes, *failed,
        ],
    )  # fmt: skip


def _scores(
    data: AnalysisData, method: Method, make: Any, options: Options
) -> dict[str, np.ndarray]:
    """Scores of a method, `[samples]` by test set."""
    if method.name == NAC:
        return TestScores(data).scores(data.settings)
    fitting = data.fitting
    if method.rule == "nac_plus":
        rules = alternatives(fitting.fit, fitting.id_val, fitting.alternative_layers)
        if "NAC+" not in rules:
            raise NACError(
                "NAC+ needs the ends of the early stages, which are not among the layers that were "
                f"read ({list(fitting.fit)}), or more ID validation samples."
            )
        return {
            name: torch.cat([rules["NAC+"](part) for part in readings.batches()]).numpy()
            for name, readings in data.scored.items()
        }
    if method.needs != "features":
        raise Absent(
            f"{method.title} needs the network itself, not only readings of it: use "
            "nac_openood.compare."
        )
    sets = data.run.study.sets
    scorer = make(method, data.run.checkpoint)
    scorer.setup(
        MethodInputs(
            data.run.head, sets.id_name, sets.n_classes,
            _batches(data, data.train), _batches(data, fitting.id_val),
            _batches(data, fitting.ood_val), std=sets.std, seed=options.seed,
            progress=options.progress,
        )
    )  # fmt: skip
    found = {}
    for name, readings in data.scored.items():
        scored = scorer.score(_batches(data, readings))
        found[name] = checked_scores(scored, readings.n_samples, name).score.astype(np.float64)
    return found


def _batches(data: AnalysisData, readings: Readings) -> FeatureBatches:
    """The head's inputs as a loader."""
    feature = readings[data.head_input].activation
    kept = Features(feature, readings.prediction, readings.label)
    return FeatureBatches(lambda: kept, readings.n_samples, data.run.study.batch_size)
