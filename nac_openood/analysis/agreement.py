"""Which samples the methods disagree on: rank correlations, decisions and examples."""

from __future__ import annotations

from itertools import combinations
from typing import Mapping, Optional, Sequence

import numpy as np

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.gallery import disputed
from nac_openood.analysis.options import Options
from nac_openood.analysis.scores import BySet, Decisions, scores_on_readings
from nac_openood.analysis.tabulate import text_heads
from nac_openood.errors import NACError
from nac_openood.evaluation.correlation import rank_correlation
from nac_openood.search.advice import NAC_TITLE
from nac_openood.tables import BarGroups, Column, Entry, Matrix, Table

_KEPT = 0.95

#: Which samples each method rejects, `[samples]` by method.
_Rejected = Mapping[str, np.ndarray]

_NOTES = (
    "A method rejects a sample if its score is below the threshold that keeps 95 % of the ID "
    "validation samples. Rank correlations are Spearman's, over the OOD samples of all sets "
    "together and over the ID test samples; NAC, NAC+ and KNN are fitted on the same samples.",
)


def agreement(data: AnalysisData, options: Options) -> Finding:
    """Rank correlations, shares of different decisions, and samples that methods dispute."""
    scores = scores_on_readings(data)
    if len(scores) < 2:
        raise NACError("agreement needs two methods: read the logits, too.")
    inside, outside = data.names("id", "csid"), data.names("near", "far")
    decisions = {method: Decisions.keeping(_KEPT, by_set) for method, by_set in scores.items()}
    id_rejected = {method: own.rejected(inside) for method, own in decisions.items()}
    ood_rejected = {method: own.rejected(outside) for method, own in decisions.items()}
    correlations = {
        "OOD samples": _correlations(scores, outside),
        "ID test samples": _correlations(scores, inside),
    }
    by_set = {m: {n: _percent(own.rejected([n])) for n in outside} for m, own in decisions.items()}
    pairs = _pairs(id_rejected, ood_rejected)
    return Finding(
        "agreement",
        "Agreement between methods",
        _sentence(ood_rejected, correlations["OOD samples"]),
        [_alone(id_rejected, ood_rejected), _pair_table(pairs), _counts(decisions, data)],
        [*(_matrix(over, found) for over, found in correlations.items()), _found_by(ood_rejected)],
        pairs,
        {"rank_correlation": correlations, "rejected_by": by_set},
        _NOTES,
        gallery=disputed(data, decisions),
    )


def _correlations(
    scores: Mapping[str, BySet], sets: Sequence[str]
) -> dict[str, dict[str, Optional[float]]]:
    """Spearman's rank correlation of every two methods over the samples of some sets."""
    joined = {m: np.concatenate([by_set[n] for n in sets]) for m, by_set in scores.items()}
    return {a: {b: rank_correlation(joined[a], joined[b]) for b in joined} for a in joined}


def _pairs(id_rejected: _Rejected, ood_rejected: _Rejected) -> list[dict[str, object]]:
    """For every two methods, the shares of samples in percent that they decide differently."""
    found: list[dict[str, object]] = []
    for first, second in combinations(ood_rejected, 2):
        a, b = ood_rejected[first], ood_rejected[second]
        found.append({
            "first": first, "second": second,
            "ood_both": _percent(a & b), "ood_first_only": _percent(a & ~b),
            "ood_second_only": _percent(b & ~a), "ood_neither": _percent(~a & ~b),
            "id_different": _percent(id_rejected[first] != id_rejected[second]),
        })  # fmt: skip
    return found


def _pair_table(pairs: Sequence[Mapping[str, object]]) -> Table:
    group = "OOD samples rejected by"
    columns = [
        *text_heads("First method", "Second method"),
        *(Column(title, group) for title in ("both", "first only", "second only", "neither")),
        Column("ID decided differently"),
    ]
    rows: list[list[Entry]] = [list(pair.values()) for pair in pairs]  # type: ignore[arg-type]
    return Table("Decisions of two methods, % of the samples", columns, rows)


def _alone(id_rejected: _Rejected, ood_rejected: _Rejected) -> Table:
    """What each method rejects, and which OOD samples it finds that no other method does."""
    rows: list[list[Entry]] = []
    for method, mine in ood_rejected.items():
        theirs = np.array([other for m, other in ood_rejected.items() if m != method])
        found, missed = mine & ~theirs.any(axis=0), ~mine & theirs.all(axis=0)
        shares = [id_rejected[method], mine, found, missed]
        rows.append([method, *(_percent(share) for share in shares)])
    columns = [
        *text_heads("Method"), Column("ID rejected", better="lower"),
        Column("OOD rejected", better="higher"), Column("OOD found by it alone"),
        Column("OOD missed by it alone", better="lower"),
    ]  # fmt: skip
    ours = [number for number, method in enumerate(ood_rejected) if method.startswith(NAC_TITLE)]
    return Table("What each method rejects, % of the samples", columns, rows, ours)


def _counts(decisions: Mapping[str, Decisions], data: AnalysisData) -> Table:
    """By set, how many methods reject a sample."""
    numbers = range(len(decisions) + 1)
    heads = [Column(str(n), "Rejected by so many methods") for n in numbers]
    rows: list[list[Entry]] = []
    for name in data.names("id", "csid", "near", "far"):
        votes = np.sum([d.rejected([name]) for d in decisions.values()], axis=0)
        rows.append([name, *(_percent(votes == n) for n in numbers)])
    title = "How many methods reject a sample, % of the samples"
    return Table(title, [*text_heads("Set"), *heads], rows)


def _found_by(ood_rejected: _Rejected) -> BarGroups:
    """The OOD samples that NAC or another method finds."""
    mine = ood_rejected[NAC_TITLE]
    rows = []
    for method, theirs in ood_rejected.items():
        if method != NAC_TITLE:
            shares = [mine & theirs, mine & ~theirs, theirs & ~mine]
            rows.append((method, [_percent(share) for share in shares]))
    names = ["both", "NAC only", "the other only"]
    title = "OOD samples found by NAC and by another method"
    return BarGroups("found_by", title, "OOD samples found, %", names, rows)


def _matrix(over: str, found: Mapping[str, Mapping[str, Optional[float]]]) -> Matrix:
    key = "rank_correlation_" + over.split()[0].lower()
    rows = [(method, list(values.values())) for method, values in found.items()]
    return Matrix(key, f"Rank correlation over {over}", list(found), rows, (-1.0, 1.0))


def _percent(which: np.ndarray) -> float:
    return 100 * float(np.mean(which))


def _sentence(
    ood_rejected: _Rejected, correlations: Mapping[str, Mapping[str, Optional[float]]]
) -> str:
    near = {m: r for m, r in correlations[NAC_TITLE].items() if m != NAC_TITLE and r is not None}
    votes = np.sum(list(ood_rejected.values()), axis=0)
    n_methods = len(ood_rejected)
    disputed_share = _percent((votes > 0) & (votes < n_methods))
    text = (
        f"At thresholds that keep 95 % of the ID validation data, {disputed_share:.1f} % of the "
        f"OOD samples are rejected by some of the {n_methods} methods and accepted by others"
    )
    if not near:
        return f"{text}."
    most, least = max(near, key=lambda m: near[m]), min(near, key=lambda m: near[m])
    ends = f"most like {most} ({near[most]:.2f})"
    if least != most:
        ends += f" and least like {least} ({near[least]:.2f})"
    return f"{text}. By rank correlation, NAC orders OOD samples {ends}."
