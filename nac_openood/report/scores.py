"""The sections made from scores: histograms, ROC curves, and what each layer contributes."""

from __future__ import annotations

from math import isfinite, nan
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np
from sklearn.metrics import roc_curve

from nac_openood import tables
from nac_openood.benchmark.run.results import Results, Row
from nac_openood.core.metrics import auroc
from nac_openood.detector.outcomes import Scores
from nac_openood.report import formatting as fmt
from nac_openood.report.methods import Ranked, RankedMethod
from nac_openood.report.render import Content, Figures, Section
from nac_openood.tables import Column, Density, Series, metric_bars, text_columns

#: The row of the combined score, beside the single layers.
COMBINED = "all layers together"
#: AUROC in percent by layer (or `COMBINED`) and OOD dataset.
Aurocs = dict[str, dict[str, float]]
_CURVES = 5  # ROC curves in a picture
_AGAIN = "the scores are missing or damaged. Run the comparison again to make them."


class RunScores(NamedTuple):
    """A method's scores on one checkpoint.

    Args:
        method: the method.
        row: its result on the checkpoint.
        inside: scores of the ID test set, then of datasets under covariate shift, by name.
        outside: scores by OOD dataset.
    """

    method: RankedMethod
    row: Row
    inside: Mapping[str, Scores]
    outside: Mapping[str, Scores]

    def id_scores(self, layer: Optional[str] = None) -> np.ndarray:
        """Scores `[samples]` of everything that counts as ID, finite ones only."""
        return np.concatenate([finite(scored, layer) for scored in self.inside.values()])

    def auroc(self, dataset: str) -> str:
        """The AUROC in percent as text; empty if it is unknown."""
        value = self.row.metrics.get(dataset, {}).get("AUROC", nan)
        return f"{value:.1f}" if isfinite(value) else ""


def finite(scored: Scores, layer: Optional[str] = None) -> np.ndarray:
    """Scores `[samples]` as float64 without NaN and infinity, of one layer if it is named."""
    found = scored.score if layer is None else scored.by_layer.get(layer, np.empty(0))
    values = np.asarray(found, float)
    return values[np.isfinite(values)]


def run_scores(results: Results, method: RankedMethod) -> Optional[RunScores]:
    """Scores of the first run that has any, because a picture shows one run; None without any."""
    for row in method.worked:
        found = {s: results.scores(row.run, row.method, s.name) for s in results.sets}
        known = {s: scored for s, scored in found.items() if scored and finite(scored).size}
        inside = {s.name: known[s] for s in known if s.role in ("id", "csid")}
        outside = {s.name: known[s] for s in known if s.name not in inside}
        if outside and any(s.role == "id" for s in known):
            return RunScores(method, row, inside, outside)
    return None


def distributions(ranked: Ranked) -> Section:
    """Score histograms of our methods, the best other method, and MSP."""
    text = "Both areas are equal; the less they overlap, the better ID and OOD are separated."
    blocks = _by_dataset(ranked, _best(ranked, 1, "msp"), _histograms, text)
    if ranked.worked and ranked.ood_sets and not blocks:
        blocks = ["The scores are not in this folder, so there is nothing to draw."]
    return Section("scores", "Score distributions", blocks)


def rocs(ranked: Ranked) -> Section:
    """ROC curves of our methods and the best other ones; empty without scores."""
    scored = _best(ranked, max(_CURVES - sum(m.ours for m in ranked.worked), 1))
    scored.sort(key=lambda sample: not sample.method.ours)
    text = (
        f"Our methods and the best other methods. {fmt.SHOWN['FPR@95']} can be read off where a "
        f"curve meets the horizontal dotted line; {fmt.SHOWN['FPR@95_IN']} is 100 minus its height "
        "at the vertical dotted line."
    )
    return Section("roc", "ROC curves", _by_dataset(ranked, scored, _curves, text))


def _best(ranked: Ranked, others: int, *more: str) -> list[RunScores]:
    """The scores of our methods, the first of the others, and those named in `more`."""
    best = [m for m in ranked.worked if not m.ours][:others]
    chosen = [m for m in ranked.worked if m.ours or m in best]
    chosen += [m for m in ranked.worked if m.method in more and m not in chosen]
    return list(filter(None, (run_scores(ranked.results, m) for m in chosen)))


def _by_dataset(ranked: Ranked, scored: list[RunScores], draw: Any, text: str) -> list[Content]:
    """A figure for each OOD dataset, of the methods with scores of it."""
    sets = {name: [s for s in scored if name in s.outside] for name in ranked.ood_sets}
    runs = dict.fromkeys(sample.row.run for sample in scored)
    found = [draw(name, own) for name, own in sets.items() if own]
    return [Figures(found, f"Checkpoint {', '.join(runs)}. {text}")] if found else []


def _histograms(dataset: str, scored: Sequence[RunScores]) -> tables.Densities:
    """A row for each method."""
    rows = []
    for sample in scored:
        inside, outside = sample.id_scores(), finite(sample.outside[dataset])
        # fewer samples, wider bins
        bins = int(np.clip(1.2 * (len(inside) + len(outside)) ** 0.5, 12, 44))
        note = f"AUROC {auroc} %" if (auroc := sample.auroc(dataset)) else ""
        rows.append((sample.method.title, [Density.of(inside, outside, note, bins)]))
    ours = [sample.method.title for sample in scored if sample.method.ours]
    label = "score (higher = more in-distribution)"
    return tables.Densities(dataset, fmt.set_title(dataset), label, [""], rows, ours=ours)


def _curves(dataset: str, scored: Sequence[RunScores]) -> tables.Lines:
    """ROC curves for one OOD dataset; OOD is the positive class, as in OpenOOD."""
    series = []
    for sample in scored:
        points = roc_points(sample.id_scores(), finite(sample.outside[dataset]))
        name = f"{sample.method.title} {sample.auroc(dataset)}".rstrip()
        series.append(Series(name, points.T.tolist()))
    labels = "ID samples rejected, %", "OOD samples found, %"
    title = f"{fmt.set_title(dataset)}, AUROC in %"
    return tables.Lines(dataset, title, *labels, series, mark=5, level=95, diagonal=True)


def roc_points(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """ID rejected and OOD found, in percent, for growing thresholds: `[2, points]`.

    A sample is called OOD if its score is at most the threshold.
    """
    is_ood = np.repeat([0, 1], [len(inside), len(outside)])
    false, true, _ = roc_curve(is_ood, -np.concatenate([inside, outside]))
    # a tenth of a percent is less than a pixel
    return np.unique(np.round([100 * false, 100 * true], 1), axis=1)


def layers_section(ranked: Ranked) -> Section:
    """AUROC of each layer of our methods; empty without scores by layer."""
    blocks: list[Content] = []
    for m in (m for m in ranked.methods if m.ours):
        sample = run_scores(ranked.results, m)
        if m.worked and sample is None:
            blocks.append(f"{m.title}: {_AGAIN}")
        if sample is not None and len(aurocs := layer_aurocs(sample)) > 1:
            blocks.append(Section("", m.title, list(_layer_blocks(ranked, sample, aurocs))))
    return Section("layers", "What each layer contributes", blocks)


def _layer_blocks(ranked: Ranked, sample: RunScores, aurocs: Aurocs) -> Iterator[Content]:
    means = {layer: float(np.mean(list(own.values()))) for layer, own in aurocs.items()}
    together = means.pop(COMBINED)
    name, alone = max(means.items(), key=lambda pair: pair[1])
    yield (
        f"Checkpoint {sample.row.run}. Mean AUROC over the OOD datasets: {together:.2f} % with all "
        f"layers together, {alone:.2f} % with the best single layer ({name})."
    )
    read = {*sample.inside, *sample.outside}
    lacking = [fmt.set_title(s.name) for s in ranked.results.sets if s.name not in read]
    if lacking:
        yield f"Without {', '.join(lacking)}: {_AGAIN}"
    title = "AUROC of each layer alone and of all layers together"
    names = list(aurocs[COMBINED])
    rows = [(fmt.set_title(n), [own.get(n) for own in aurocs.values()]) for n in names]
    yield Figures([metric_bars("AUROC", title, list(aurocs), rows)])
    lines = [[layer, *map(own.get, names)] for layer, own in aurocs.items()]
    columns = text_columns("Layer")
    columns += [Column(fmt.set_title(n), better="higher") for n in names]
    yield tables.Table("AUROC of each layer, %", columns, lines, [list(aurocs).index(COMBINED)])


def layer_aurocs(sample: RunScores) -> Aurocs:
    """The AUROC of each layer alone and of all together; empty without scores by layer."""
    layers = list(next(iter(sample.inside.values())).by_layer)
    found: Aurocs = {}
    for layer in (*layers, None) if layers else ():
        inside = sample.id_scores(layer)
        for dataset, scored in sample.outside.items():
            outside = finite(scored, layer)
            if inside.size and outside.size:
                value = 100 * float(auroc(inside, outside))
                found.setdefault(layer or COMBINED, {})[dataset] = value
    return found
