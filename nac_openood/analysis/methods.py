"""NAC and other methods, scored from readings without running the network.

`near` compares them on near-OOD data; `agreement` shows rank correlations, decisions, and samples
on which they differ.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any, Mapping, Optional, Sequence

import numpy as np
from scipy.stats import percentileofscore

from nac_openood import tables as shown
from nac_openood.analysis.data import ID_VAL, AnalysisData, BySet, Options
from nac_openood.analysis.finding import Finding, MetricStudy
from nac_openood.benchmark.methods.backends import scorers
from nac_openood.benchmark.methods.table import METHODS, NAC, Absent, Method, chosen_methods
from nac_openood.benchmark.run.network import FeatureBatches, Features, checked_scores
from nac_openood.benchmark.run.results import NEAR, metrics_by_set
from nac_openood.core.metrics import threshold_at
from nac_openood.detector.batches import bar
from nac_openood.detector.readings import Readings
from nac_openood.errors import NACError, error_text
from nac_openood.evaluation.ranking import rank_correlation
from nac_openood.search.advise import NAC_TITLE
from nac_openood.sources.images import png_url, small_png
from nac_openood.tables import Column, Entry, Table, text_columns

_MOST_EXAMPLES = 8  # samples per group
_AGREEMENT_NOTE = (
    "A method rejects a sample if its score is below the threshold that keeps 95 % of the ID "
    "validation samples. Rank correlations are Spearman's, over the OOD samples of all sets "
    "together and over the ID test samples; NAC, NAC+ and KNN are fitted on the same samples."
)


def near(data: AnalysisData, options: Options) -> Finding:
    """AUROC and FPR@95 of methods on the near-OOD sets.

    NAC has the settings in use; NAC+ is fitted on the same samples. Baselines are set up on all
    training samples that were read, with the search that `compare` does.
    """
    if not data.names("near"):
        raise NACError("there is no near-OOD set: pass `near`.")
    default = [row.name for row in METHODS.values() if row.needs == "features" or row.rule]
    methods = {row.name: row for row in chosen_methods(options.methods or default)}
    on_features = [row for row in methods.values() if row.needs == "features"]
    make = scorers(on_features, options.backend, say=options.say)
    study, problems = MetricStudy(data, options, "method", group=NEAR), {}
    for name, method in bar(list(methods.items()), "methods", options.progress):
        try:
            scores = _scores(data, method, make, options)
        except Exception as error:  # third-party methods may raise anything
            problems[name] = error_text(error)
        else:
            study.found[name] = metrics_by_set(scores, data.roles, data.accuracy)
    failed = [f"{methods[name].title} has no result: {why}" for name, why in problems.items()]
    if not study.found:
        raise NACError(f"no method could be run: {failed[0]}")
    aurocs = study.values()
    order = sorted(aurocs, key=lambda name: -aurocs[name])
    titles = {name: methods[name].title for name in order}
    ours = [row for row, name in enumerate(order) if methods[name].rule is not None]
    best = f"{titles[order[0]]} ({aurocs[order[0]]:.2f} %)"
    sentence = f"Of {len(order)} methods, {best} has the highest near-OOD AUROC"
    if NAC in order[1:]:
        sentence += f"; NAC is number {order.index(NAC) + 1} ({aurocs[NAC]:.2f} %)"
    study.notes.append(
        f"Baselines are set up on the {len(data.train_rows):,} training samples that were read. "
        "Methods that need the network itself can be run by nac_openood.compare."
    )
    study.table(
        "", text_columns("Method"), [([titles[name]], study.found[name], name) for name in order],
        columns={NEAR: "Mean", **{name: name for name in data.names("near")}},
        paper=study.paper("Table 15", "method", dataset=NEAR), ours=ours,
    )  # fmt: skip
    study.notes += failed
    study.ranked_bars("Near-OOD {}, mean over sets", titles, *(titles[order[row]] for row in ours))
    return study.finding("near", "Near-OOD detection", f"{sentence}.", {"problems": problems})


def _scores(data: AnalysisData, method: Method, make: Any, options: Options) -> BySet:
    """Scores of a method, `[samples]` by test set."""
    fitting = data.fitting
    if method.rule in ("nac", "nac_plus"):
        if method.title not in data.method_scores:
            raise NACError(
                "NAC+ needs the ends of the early stages, which are not among the layers that were "
                f"read ({list(fitting.fit)}), or more ID validation samples."
            )
        return data.method_scores[method.title]
    if method.needs != "features":
        raise Absent(f"{method.title} needs the network itself: use nac_openood.compare.")

    def features(readings: Readings) -> FeatureBatches:
        feature = readings[data.head_input].activation
        kept = Features(feature, readings.prediction, readings.label)
        return FeatureBatches(lambda: kept, readings.n_samples, data.run.study.batch_size)

    scorer = make(method, data.run.checkpoint)
    train, id_val, ood_val = map(features, (data.train, fitting.id_val, fitting.ood_val))
    read: Any = {"train": train, "id_val": id_val, "ood_val": ood_val, "seed": options.seed}
    scorer.setup(replace(data.run.inputs("features"), **read, progress=options.progress))
    found = {name: scorer.score(features(readings)) for name, readings in data.scored.items()}
    checked = (checked_scores(s, data.scored[n].n_samples, n) for n, s in found.items())
    return {name: scores.score.astype(np.float64) for name, scores in zip(found, checked)}


def agreement(data: AnalysisData, options: Options) -> Finding:
    """Rank correlations, shares of different decisions, and samples on which methods disagree."""
    scores, rejected = data.method_scores, {}  # by method and set
    inside, outside = data.names("id", "csid"), data.names("near", "far")
    for method, by_set in scores.items():
        limit = threshold_at(by_set[ID_VAL], 0.95)
        rejected[method] = {name: score < limit for name, score in by_set.items()}
    of_id, of_ood = _joined(rejected, inside), _joined(rejected, outside)
    joined = {"OOD samples": _joined(scores, outside), "ID test samples": _joined(scores, inside)}
    correlations = {
        over: {a: {b: rank_correlation(found[a], found[b]) for b in found} for a in found}
        for over, found in joined.items()
    }
    pairs: list[dict[str, Any]] = []
    for first, second in combinations(scores, 2):
        a, b = of_ood[first], of_ood[second]
        pairs.append({
            "first": first, "second": second,
            "ood_both": _percent(a & b), "ood_first_only": _percent(a & ~b),
            "ood_second_only": _percent(b & ~a), "ood_neither": _percent(~a & ~b),
            "id_different": _percent(of_id[first] != of_id[second]),
        })  # fmt: skip
    figures: list[shown.AnyFigure] = []
    for over, found in correlations.items():
        key, title = f"rank_correlation_{over.split()[0].lower()}", f"Rank correlation over {over}"
        rows = [(method, list(line.values())) for method, line in found.items()]
        figures.append(shown.Matrix(key, title, list(found), rows, (-1.0, 1.0)))
    with_nac = ("ood_both", "ood_first_only", "ood_second_only")  # NAC is the first method
    bars = [(p["second"], [p[key] for key in with_nac]) for p in pairs if p["first"] == NAC_TITLE]
    title = "OOD samples found by NAC and by another method"
    names = ["both", "NAC only", "the other only"]
    figures.append(shown.BarGroups("found_by", title, "OOD samples found, %", names, bars))
    shares = {m: {n: _percent(own[n]) for n in outside} for m, own in rejected.items()}
    return Finding(
        "agreement", "Agreement between methods",
        _agreement_sentence(of_ood, correlations["OOD samples"]),
        _agreement_tables(rejected, of_id, of_ood, pairs, (*inside, *outside)), figures, pairs,
        {"rank_correlation": correlations, "rejected_by": shares}, (_AGREEMENT_NOTE,),
        gallery=_gallery(data, scores, rejected),
    )  # fmt: skip


def _joined(by_method: Mapping[str, BySet], sets: Sequence[str]) -> dict[str, np.ndarray]:
    """Values of the samples of some sets, one set after the other, by method."""
    return {m: np.concatenate([by_set[n] for n in sets]) for m, by_set in by_method.items()}


def _percent(which: np.ndarray) -> float:
    return 100 * float(np.mean(which))


def _agreement_tables(
    rejected: Mapping[str, BySet], of_id: BySet, of_ood: BySet,
    pairs: Sequence[Mapping[str, Any]], sets: Sequence[str],
) -> list[Table]:  # fmt: skip
    votes, counts = np.sum(list(of_ood.values()), axis=0), range(len(of_ood) + 1)
    alone: list[list[Entry]] = []
    for method, own in of_ood.items():
        found, missed = own & (votes == 1), ~own & (votes == len(of_ood) - 1)
        alone.append([method, *map(_percent, (of_id[method], own, found, missed))])
    by_set: list[list[Entry]] = []
    for name in sets:
        votes = np.sum([own[name] for own in rejected.values()], axis=0)
        by_set.append([name, *(_percent(votes == n) for n in counts)])
    ours = [row for row, method in enumerate(of_ood) if method.startswith(NAC_TITLE)]
    which, percent = ("both", "first only", "second only", "neither"), "% of the samples"
    return [
        Table(f"What each method rejects, {percent}",
              [*text_columns("Method"), Column("ID rejected", better="lower"),
               Column("OOD rejected", better="higher"), Column("OOD found by it alone"),
               Column("OOD missed by it alone", better="lower")], alone, ours),
        Table(f"Decisions of two methods, {percent}",
              [*text_columns("First method", "Second method"),
               *(Column(title, "OOD samples rejected by") for title in which),
               Column("ID decided differently")], [[*pair.values()] for pair in pairs]),
        Table(f"How many methods reject a sample, {percent}",
              [*text_columns("Set"),
               *(Column(str(n), "Rejected by so many methods") for n in counts)], by_set),
    ]  # fmt: skip


def _gallery(
    data: AnalysisData, scores: Mapping[str, BySet], rejected: Mapping[str, BySet]
) -> list[shown.Examples]:
    """Samples on which NAC disagrees with most other methods, the largest differences first."""
    inside, outside = data.names("id", "csid"), data.names("near", "far")
    groups = {
        "OOD samples that NAC finds and most other methods miss": (outside, True),
        "OOD samples that NAC misses and most other methods find": (outside, False),
        "ID test samples that NAC accepts and most other methods reject": (inside, False),
        "ID test samples that NAC rejects and most other methods accept": (inside, True),
    }
    # the share of ID validation samples with lower scores, in percent; equal ones count half
    ranks = {
        method: {n: percentileofscore(own[ID_VAL], own[n], "mean") for n in own}
        for method, own in scores.items()
    }
    others = [method for method in scores if method != NAC_TITLE]
    found = []
    for title, (sets, rejects) in groups.items():
        samples = [(name, row) for name in sets for row in range(len(scores[NAC_TITLE][name]))]
        rank, rejecting = _joined(ranks, sets), _joined(rejected, sets)
        disputed = np.mean([rejecting[m] != rejects for m in others], axis=0) > 0.5
        gap = np.mean([rank[m] for m in others], axis=0) - rank[NAC_TITLE]
        chosen = np.flatnonzero((rejecting[NAC_TITLE] == rejects) & disputed)
        order = np.argsort(-gap[chosen] if rejects else gap[chosen], kind="stable")
        examples = []
        for number in chosen[order][:_MOST_EXAMPLES]:
            name, row = samples[number]
            dataset = data.run.study.scored[name]
            picture = dataset.picture(row)
            image = None if picture is None else png_url(small_png(picture))
            shares = {method: float(rank[method][number]) for method in scores}
            examples.append(shown.Example(name, dataset.sample_name(row), shares, image))
        if examples:
            found.append(shown.Examples(title, examples))
    return found


def _agreement_sentence(
    of_ood: BySet, correlations: Mapping[str, Mapping[str, Optional[float]]]
) -> str:
    votes, n_methods = np.sum(list(of_ood.values()), axis=0), len(of_ood)
    disputed = _percent((votes > 0) & (votes < n_methods))
    text = "At thresholds that keep 95 % of the ID validation data, "
    text += f"the {n_methods} methods disagree on {disputed:.1f} % of the OOD samples."
    rc = {m: r for m, r in correlations[NAC_TITLE].items() if m != NAC_TITLE and r is not None}
    if rc:
        most, least = max(rc, key=rc.__getitem__), min(rc, key=rc.__getitem__)
        text += f" By rank correlation, NAC orders OOD samples most like {most} ({rc[most]:.2f})"
        text += "." if least == most else f" and least like {least} ({rc[least]:.2f})."
    return text
