"""Agreement between methods: rank correlations, decisions, and samples on which they differ."""

from __future__ import annotations

from itertools import combinations
from typing import Any, Mapping, Optional, Sequence

import numpy as np

from nac_openood.analysis.data import AnalysisData, Options
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.scoring import ID_VAL, BySet, scores_on_readings
from nac_openood.analysis.tabulate import text_heads
from nac_openood.core.metrics import threshold_at
from nac_openood.errors import NACError
from nac_openood.evaluation.ranking import rank_correlation
from nac_openood.search.advise import NAC_TITLE
from nac_openood.sources.images import png_url, small_png
from nac_openood.tables import BarGroups, Column, Entry, Example, Examples, Matrix, Table

_KEPT = 0.95
_MOST_EXAMPLES = 8  # samples per group
_NOTES = (
    "A method rejects a sample if its score is below the threshold that keeps 95 % of the ID "
    "validation samples. Rank correlations are Spearman's, over the OOD samples of all sets "
    "together and over the ID test samples; NAC, NAC+ and KNN are fitted on the same samples.",
)

#: Which samples each method rejects, bool `[samples]`.
_Rejected = Mapping[str, np.ndarray]


def agreement(data: AnalysisData, options: Options) -> Finding:
    """Rank correlations, shares of different decisions, and samples on which methods disagree."""
    scores = scores_on_readings(data)
    if len(scores) < 2:
        raise NACError("agreement needs at least two methods: read the logits, too.")
    inside, outside = data.names("id", "csid"), data.names("near", "far")
    rejected: dict[str, BySet] = {}  # by method and set
    for method, by_set in scores.items():
        limit = threshold_at(by_set[ID_VAL], _KEPT)
        rejected[method] = {name: score < limit for name, score in by_set.items()}
    of_id, of_ood = _joined(rejected, inside), _joined(rejected, outside)
    correlations = {
        over: {a: {b: rank_correlation(joined[a], joined[b]) for b in joined} for a in joined}
        for over, joined in (
            ("OOD samples", _joined(scores, outside)),
            ("ID test samples", _joined(scores, inside)),
        )
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
    figures: list[Any] = [
        Matrix(
            "rank_correlation_" + over.split()[0].lower(), f"Rank correlation over {over}",
            list(found), [(method, list(line.values())) for method, line in found.items()],
            (-1.0, 1.0),
        )
        for over, found in correlations.items()
    ]  # fmt: skip
    nac = of_ood[NAC_TITLE]
    rows = [
        (method, [_percent(share) for share in (nac & other, nac & ~other, other & ~nac)])
        for method, other in of_ood.items()
        if method != NAC_TITLE
    ]
    title = "OOD samples found by NAC and by another method"
    names = ["both", "NAC only", "the other only"]
    figures.append(BarGroups("found_by", title, "OOD samples found, %", names, rows))
    shares = {m: {n: _percent(own[n]) for n in outside} for m, own in rejected.items()}
    return Finding(
        "agreement", "Agreement between methods", _sentence(of_ood, correlations["OOD samples"]),
        _tables(data, rejected, of_id, of_ood, pairs), figures, pairs,
        {"rank_correlation": correlations, "rejected_by": shares}, _NOTES,
        gallery=_gallery(data, scores, rejected),
    )  # fmt: skip


def _joined(by_method: Mapping[str, BySet], sets: Sequence[str]) -> dict[str, np.ndarray]:
    """Values of the samples of some sets, one set after the other, by method."""
    return {m: np.concatenate([by_set[n] for n in sets]) for m, by_set in by_method.items()}


def _percent(which: np.ndarray) -> float:
    return 100 * float(np.mean(which))


def _tables(
    data: AnalysisData, rejected: Mapping[str, BySet], of_id: _Rejected, of_ood: _Rejected,
    pairs: Sequence[Mapping[str, Any]],
) -> list[Table]:  # fmt: skip
    rows: list[list[Entry]] = []
    for method, own in of_ood.items():
        others = np.array([other for m, other in of_ood.items() if m != method])
        found, missed = own & ~others.any(axis=0), ~own & others.all(axis=0)
        rows.append([method, *map(_percent, (of_id[method], own, found, missed))])
    heads = [
        *text_heads("Method"), Column("ID rejected", better="lower"),
        Column("OOD rejected", better="higher"), Column("OOD found by it alone"),
        Column("OOD missed by it alone", better="lower"),
    ]  # fmt: skip
    ours = [row for row, method in enumerate(of_ood) if method.startswith(NAC_TITLE)]
    alone = Table("What each method rejects, % of the samples", heads, rows, ours)
    group = "OOD samples rejected by"
    heads = [
        *text_heads("First method", "Second method"),
        *(Column(title, group) for title in ("both", "first only", "second only", "neither")),
        Column("ID decided differently"),
    ]
    decided = [list(pair.values()) for pair in pairs]
    counts = range(len(rejected) + 1)
    rows = []
    for name in data.names("id", "csid", "near", "far"):
        votes = np.sum([by_set[name] for by_set in rejected.values()], axis=0)
        rows.append([name, *(_percent(votes == n) for n in counts)])
    votes_heads = [Column(str(n), "Rejected by so many methods") for n in counts]
    return [
        alone,
        Table("Decisions of two methods, % of the samples", heads, decided),
        Table(
            "How many methods reject a sample, % of the samples",
            [*text_heads("Set"), *votes_heads], rows,
        ),
    ]  # fmt: skip


def _gallery(
    data: AnalysisData, scores: Mapping[str, BySet], rejected: Mapping[str, BySet]
) -> list[Examples]:
    """Samples on which NAC disagrees with most other methods, the largest differences first."""
    inside, outside = data.names("id", "csid"), data.names("near", "far")
    groups = {
        "OOD samples that NAC finds and most other methods miss": (outside, True),
        "OOD samples that NAC misses and most other methods find": (outside, False),
        "ID test samples that NAC accepts and most other methods reject": (inside, False),
        "ID test samples that NAC rejects and most other methods accept": (inside, True),
    }
    ranks = {m: {n: percentiles(own[ID_VAL], own[n]) for n in own} for m, own in scores.items()}
    others = [method for method in scores if method != NAC_TITLE]
    found = []
    for title, (sets, rejects) in groups.items():
        candidates: list[tuple[float, str, int]] = []
        for name in sets:
            unlike = np.mean([rejected[m][name] != rejects for m in others], axis=0) > 0.5
            gap = np.mean([ranks[m][name] for m in others], axis=0) - ranks[NAC_TITLE][name]
            chosen = np.flatnonzero((rejected[NAC_TITLE][name] == rejects) & unlike)
            candidates += [(float(gap[i] if rejects else -gap[i]), name, int(i)) for i in chosen]
        candidates.sort(key=lambda each: (-each[0], each[1], each[2]))
        examples = []
        for _, name, row in candidates[:_MOST_EXAMPLES]:
            samples = data.run.study.scored[name]
            picture = samples.picture(row)
            image = None if picture is None else png_url(small_png(picture))
            shares = {method: float(ranks[method][name][row]) for method in scores}
            examples.append(Example(name, samples.sample_name(row), shares, image))
        if examples:
            found.append(Examples(title, examples))
    return found


def percentiles(id_val: np.ndarray, score: np.ndarray) -> np.ndarray:
    """The share of ID validation samples with lower scores, in percent; equal ones count half."""
    ordered = np.sort(id_val)
    lower = np.searchsorted(ordered, score) + np.searchsorted(ordered, score, "right")
    return 50 * lower / len(ordered)


def _sentence(of_ood: _Rejected, correlations: Mapping[str, Mapping[str, Optional[float]]]) -> str:
    votes, n_methods = np.sum(list(of_ood.values()), axis=0), len(of_ood)
    disputed = _percent((votes > 0) & (votes < n_methods))
    text = (
        f"At thresholds that keep 95 % of the ID validation data, {disputed:.1f} % of the OOD "
        f"samples are rejected by some of the {n_methods} methods and accepted by others."
    )
    alike = {m: r for m, r in correlations[NAC_TITLE].items() if m != NAC_TITLE and r is not None}
    if not alike:
        return text
    most, least = max(alike, key=alike.__getitem__), min(alike, key=alike.__getitem__)
    text += f" By rank correlation, NAC orders OOD samples most like {most} ({alike[most]:.2f})"
    return f"{text}." if least == most else f"{text} and least like {least} ({alike[least]:.2f})."
