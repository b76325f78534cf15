"""The sections made from scores: histograms, ROC curves, and what each layer contributes."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Iterator, Mapping, Optional, Sequence

import numpy as np

from nac_openood import tables
from nac_openood.benchmark.run.results import Results
from nac_openood.core.metrics import auroc
from nac_openood.detector.outcomes import Scores
from nac_openood.report.formatting import SHOWN, set_title
from nac_openood.report.methods import Ranked, RankedMethod
from nac_openood.report.render import Content, Figures, Section
from nac_openood.tables import BarGroups, Cell, Column, Density, Entry, Series

_LayerAurocs = Mapping[str, Mapping[str, float]]
#: The row of the combined score, beside the single layers.
COMBINED = "all layers together"
_CURVES, _POINTS = 5, 200  # ROC curves in a picture, and points of a curve
_AGAIN = "the scores are missing or damaged. Run the comparison again to make them."


@dataclass(frozen=True)
class RunScores:
    """A method's scores on one checkpoint.

    Args:
        run: name of the checkpoint.
        inside: scores of the ID test set.
        shifted: dataset under covariate shift -> scores; these count as ID.
        outside: OOD dataset -> scores.
        aurocs: OOD dataset -> AUROC in percent, where known.
    """

    run: str
    inside: Scores
    shifted: Mapping[str, Scores]
    outside: Mapping[str, Scores]
    aurocs: Mapping[str, float]

    def id_scores(self, layer: Optional[str] = None) -> np.ndarray:
        """Scores `[samples]` of everything that counts as ID, finite ones only."""
        return np.concatenate([finite(s, layer) for s in (self.inside, *self.shifted.values())])


#: The methods of a picture and their scores.
_Scored = Sequence[tuple[RankedMethod, RunScores]]


def finite(scored: Scores, layer: Optional[str] = None) -> np.ndarray:
    """Scores `[samples]` as float64 without NaN and infinity, of one layer if it is named."""
    found = scored.score if layer is None else scored.by_layer.get(layer, np.empty(0))
    values = np.asarray(found, float)
    return values[np.isfinite(values)]


def run_scores(results: Results, method: str) -> Optional[RunScores]:
    """Scores of the first run that has any, because a picture shows one run; None without any."""
    for row in results.rows:
        if row.method == method and row.status == "ok":
            found = {s.name: results.scores(row.run, method, s.name) for s in results.sets}
            known = {n: s for n, s in found.items() if s is not None and finite(s).size}
            inside, shifted, near, far = (
                {n: known[n] for n in results.names(role) if n in known}
                for role in ("id", "csid", "near", "far")
            )
            outside = {**near, **far}
            if inside and outside:
                aurocs = {n: row.metrics.get(n, {}).get("AUROC") for n in outside}
                numbers = {n: a for n, a in aurocs.items() if a is not None and isfinite(a)}
                return RunScores(row.run, next(iter(inside.values())), shifted, outside, numbers)
    return None


def distributions(ranked: Ranked) -> Section:
    """Score histograms of our methods, the best other method, and MSP."""
    scored = _best(ranked, 1, "msp")
    blocks: list[Content] = []
    if scored:
        text = (
            f"{_runs(scored)} Histograms are scaled to the same area: the less the two overlap, "
            "the better the method tells ID from OOD."
        )
        blocks = [Figures([_histograms(*pair) for pair in _by_set(ranked, scored)], text)]
    elif ranked.worked and ranked.ood_sets:
        blocks = ["The scores are not in this folder, so there is nothing to draw here."]
    return Section("scores", "Score distributions", blocks)


def rocs(ranked: Ranked) -> Section:
    """ROC curves of our methods and the best other ones; empty without scores."""
    scored = _best(ranked, max(_CURVES - sum(m.ours for m in ranked.worked), 1))
    scored = sorted(scored, key=lambda pair: not pair[0].ours)
    text = (
        f"Our methods and the best other methods. {_runs(scored)} {SHOWN['FPR@95']} can be read "
        f"off where a curve meets the horizontal dotted line; {SHOWN['FPR@95_IN']} is 100 minus "
        "its height at the vertical dotted line."
    )
    found = [_curves(*pair) for pair in _by_set(ranked, scored)]
    return Section("roc", "ROC curves", [Figures(found, text)] if scored else [])


def _best(ranked: Ranked, others: int, *more: str) -> _Scored:
    """The scores of our methods, the first of the others, and those named in `more`."""
    best = [m for m in ranked.worked if not m.ours][:others]
    chosen = [m for m in ranked.worked if m.ours or m in best]
    chosen += [m for m in ranked.worked if m.method in more and m not in chosen]
    found = [(m, run_scores(ranked.results, m.method)) for m in chosen]
    return [(m, sample) for m, sample in found if sample is not None]


def _by_set(ranked: Ranked, scored: _Scored) -> list[tuple[str, _Scored]]:
    """OOD datasets, and the methods with scores of them."""
    sets = [(n, [pair for pair in scored if n in pair[1].outside]) for n in ranked.ood_sets]
    return [(name, own) for name, own in sets if own]


def _runs(scored: _Scored) -> str:
    runs = list(dict.fromkeys(sample.run for _, sample in scored))
    return f"Checkpoint{'' if len(runs) == 1 else 's'} {', '.join(runs)}."


def _histograms(dataset: str, scored: _Scored) -> tables.Densities:
    """A row for each method."""
    rows = []
    for m, sample in scored:
        inside, outside = finite(sample.inside), finite(sample.outside[dataset])
        # fewer samples, wider bins
        bins = int(np.clip(1.2 * (len(inside) + len(outside)) ** 0.5, 12, 44))
        shifted = map(finite, sample.shifted.values())
        note = f"AUROC {sample.aurocs[dataset]:.1f} %" if dataset in sample.aurocs else ""
        rows.append((m.title, [Density.of(inside, outside, *shifted, bins=bins, note=note)]))
    label, ours = "score (higher = more in-distribution)", [m.title for m, _ in scored if m.ours]
    return tables.Densities(dataset, set_title(dataset), label, [""], rows, ours=ours)


def _curves(dataset: str, scored: _Scored) -> tables.Lines:
    """ROC curves for one OOD dataset; OOD is the positive class, as in OpenOOD."""
    series = []
    for m, sample in scored:
        points = roc_points(sample.id_scores(), finite(sample.outside[dataset]))
        auroc = sample.aurocs.get(dataset)
        name = m.title if auroc is None else f"{m.title} {auroc:.1f}"
        series.append(Series(name, np.stack(points, axis=1).tolist()))
    labels = "ID samples rejected, %", "OOD samples found, %"
    title = f"{set_title(dataset)}, AUROC in %"
    return tables.Lines(dataset, title, *labels, series, mark=5, level=95, diagonal=True)


def roc_points(inside: np.ndarray, outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ID rejected and OOD found, in percent, for growing thresholds; thinned evenly.

    A sample is called OOD if its score is at most the threshold.
    """
    levels = np.unique(np.concatenate([inside, outside]))
    false = np.searchsorted(np.sort(inside), levels, side="right") / len(inside)
    true = np.searchsorted(np.sort(outside), levels, side="right") / len(outside)
    false, true = np.r_[0, false] * 100, np.r_[0, true] * 100
    if len(false) > _POINTS:
        # even steps along the curve, so that steep parts keep as many points as flat ones
        steps = np.linspace(0, false[-1] + true[-1], _POINTS)
        keep = np.unique(np.searchsorted(false + true, steps).clip(0, len(false) - 1))
        false, true = false[keep], true[keep]
    return false, true


def layers_section(ranked: Ranked) -> Section:
    """AUROC and mean scores of each layer of our methods; empty without scores by layer."""
    results, blocks = ranked.results, []
    ours = [m for m in ranked.methods if m.ours]
    for m in ours:
        sample = run_scores(results, m.method)
        aurocs = layer_aurocs(sample) if sample is not None else {}
        sets = [(row.run, name) for row in m.rows for name in ranked.ood_sets]
        own: list[Content] = []
        if sample is not None and aurocs:
            own = list(_layer_blocks(ranked, sample, aurocs))
        elif sample is None and any(results.scores(run, m.method, name) for run, name in sets):
            own = [f"ID data: {_AGAIN}"]
        blocks += [Section("", m.title, own)] if own else []
    return Section("layers", "What each layer contributes", blocks)


def _layer_blocks(ranked: Ranked, sample: RunScores, aurocs: _LayerAurocs) -> Iterator[Content]:
    yield f"Checkpoint {sample.run}. {_best_layer(aurocs)}"
    read = {*sample.shifted, *sample.outside}
    lacking = [n for n in (*ranked.results.names("csid"), *ranked.ood_sets) if n not in read]
    if lacking:
        yield f"Without {', '.join(map(set_title, lacking))}: {_AGAIN}"
    sets = list(dict.fromkeys(n for values in aurocs.values() for n in values))
    title = "AUROC of each layer alone and of all layers together"
    rows = [(set_title(n), [own.get(n) for own in aurocs.values()]) for n in sets]
    bars = BarGroups("layers", title, "AUROC, % (50 is chance)", list(aurocs), rows, 50.0)
    yield Figures([bars])
    best = {n: max(v[n] for v in aurocs.values() if n in v) for n in sets}
    lines: list[list[Entry]] = []
    for layer, own in aurocs.items():
        cells = {n: Cell(f"{v:.2f}", value=v, best=v == best[n]) for n, v in own.items()}
        lines.append([layer, *map(cells.get, sets)])
    columns = [Column("Layer", number=False)]
    columns += [Column(set_title(n), better="higher") for n in sets]
    last = [number for number, layer in enumerate(aurocs) if layer == COMBINED]
    yield tables.Table("AUROC of each layer, %", columns, lines, last)
    text = "In-distribution samples should score higher than OOD samples."
    means = [_layer_means(ranked.results, sample, name) for name in aurocs if name != COMBINED]
    yield Section("", "Mean score of each layer", [Figures(means, text)])


def _layer_means(results: Results, sample: RunScores, layer: str) -> BarGroups:
    """The mean score of a layer on ID data and on every OOD dataset."""
    inside = {f"{set_title(results.id_name)} (ID)": sample.inside, **sample.shifted}
    scored = {set_title(n): finite(s, layer) for n, s in {**inside, **sample.outside}.items()}
    rows = [(title, [float(values.mean())]) for title, values in scored.items() if values.size]
    ours = list(map(set_title, inside))
    return BarGroups(layer, layer, "mean score", [layer], rows, end=0, ours=ours, width=240)


def _best_layer(aurocs: _LayerAurocs) -> str:
    """How all layers together compare with the best single layer by mean AUROC."""
    means = {layer: float(np.mean(list(v.values()))) for layer, v in aurocs.items()}
    together = means.pop(COMBINED, None)
    if together is None or not means:
        return ""
    name, alone = max(means.items(), key=lambda pair: pair[1])
    side = "above" if together >= alone else "below"
    return (
        f"All layers together reach {together:.2f} % AUROC on average over the OOD datasets, "
        f"{abs(together - alone):.2f} points {side} the best single layer ({name}, {alone:.2f} %)."
    )


def layer_aurocs(sample: RunScores) -> dict[str, dict[str, float]]:
    """Layer (and `COMBINED`) -> OOD dataset -> AUROC in percent; empty without scores by layer."""
    layers = list(sample.inside.by_layer)
    found: dict[str, dict[str, float]] = {}
    for layer in (*layers, None) if layers else ():
        inside = sample.id_scores(layer)
        for dataset, scored in sample.outside.items():
            outside = finite(scored, layer)
            if inside.size and outside.size:
                value = 100 * float(auroc(inside, outside))
                found.setdefault(layer or COMBINED, {})[dataset] = value
    return found
