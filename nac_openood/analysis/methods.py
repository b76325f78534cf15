"""Scores of other methods on the readings: those that need penultimate features and the head."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence

import numpy as np
import torch

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.options import Options
from nac_openood.analysis.scores import TestScores
from nac_openood.benchmark.methods.backends import Make, scorers
from nac_openood.benchmark.methods.scorer import Given
from nac_openood.benchmark.methods.table import METHODS, NAC, Absent, Method, chosen_methods
from nac_openood.benchmark.run.features import FeatureBatches, Features
from nac_openood.benchmark.run.meter import Timing
from nac_openood.benchmark.run.runner import checked_scores
from nac_openood.detector.readings import Readings
from nac_openood.errors import NACError, error_text
from nac_openood.progress import bar
from nac_openood.search.alternatives import alternatives

_PLUS = "nac_plus"


class MethodScores(NamedTuple):
    """Scores of a method: `[samples]` by test set, or why there are none."""

    method: Method
    scores: Mapping[str, np.ndarray]
    problem: str = ""


def method_scores(data: AnalysisData, options: Options, names: Sequence[str]) -> list[MethodScores]:
    """Score the test sets with methods that do not need the network.

    NAC has the settings in use; NAC+ is fitted on the same samples. Baselines are set up on all
    training samples that were read, with the search that `compare` does.

    Args:
        data: the readings.
        options: whose baselines run, and the seed.
        names: names of the method table.
    """
    rows = chosen_methods(names)
    on_features = [row for row in rows if row.needs == "features"]
    make = scorers(on_features, options.backend, say=options.say)
    found = []
    for row in bar(rows, "methods", options.progress):
        try:
            found.append(MethodScores(row, _scores(data, row, make, options)))
        except Exception as error:  # methods of others may raise anything
            found.append(MethodScores(row, {}, error_text(error)))
    return found


def _scores(
    data: AnalysisData, method: Method, make: Make, options: Options
) -> dict[str, np.ndarray]:
    if method.name == NAC:
        return TestScores(data).scores(data.settings)
    if method.name == _PLUS:
        return _plus(data)
    if method.needs != "features":
        raise Absent(
            f"{method.title} needs the network itself, not only readings of it: use "
            "nac_openood.compare."
        )
    scorer = make(method, data.bench.run)
    size = data.bench.study.batch_size
    scorer.setup(_given(data, size, options))
    found = {}
    for name, readings in data.scored.items():
        scored = scorer.score(_batches(data, readings, size))
        found[name] = checked_scores(scored, readings.n_samples, name).score.astype(np.float64)
    return found


def _plus(data: AnalysisData) -> dict[str, np.ndarray]:
    given = data.fitting
    rules = alternatives(given.fit, given.id_val, given.known)
    if "NAC+" not in rules:
        raise NACError(
            f"NAC+ needs the ends of the early stages, which are not among the layers that were "
            f"read ({list(given.fit)}), or more ID validation samples."
        )
    with torch.no_grad():
        return {
            name: torch.cat([rules["NAC+"](part) for part in readings.batches()]).numpy()
            for name, readings in data.scored.items()
        }


def _given(data: AnalysisData, size: int, options: Options) -> Given:
    sets, fitting = data.bench.study.sets, data.fitting
    return Given(
        data.bench.head, sets.id_name, sets.n_classes, _batches(data, data.train, size),
        _batches(data, fitting.id_val, size), _batches(data, fitting.ood_val, size),
        std=sets.std, seed=options.seed, progress=options.progress,
    )  # fmt: skip


def _batches(data: AnalysisData, readings: Readings, size: int) -> FeatureBatches:
    """The head's inputs as a loader."""
    feature = readings[data.head_input].activation
    kept = Features(feature, readings.prediction, readings.label, Timing(), "")
    return FeatureBatches(lambda: kept, readings.n_samples, size)


def feature_methods() -> list[str]:
    """The methods that can be scored on readings, in the paper's order."""
    return [row.name for row in METHODS.values() if row.needs == "features" or row.rule]
