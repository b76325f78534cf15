"""The sections made from scores: histograms, ROC curves, and what each layer contributes."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any, Iterator, Mapping, Optional, Sequence

import numpy as np

from nac_openood.benchmark.run.results import Results, Row
from nac_openood.core.metrics import auroc
from nac_openood.detector.outcomes import Scores
from nac_openood.report.blocks import Content, Heading, Picture, Pictures, Section
from nac_openood.report.drawing import DASHES, FAINT, GRID, ID_COLOR, OTHERS, OUR_COLOR
from nac_openood.report.figures import bars_picture, draw_density, picture_of
from nac_openood.report.formatting import SHOWN, set_title
from nac_openood.report.methods import RankedMethod, ood_sets
from nac_openood.tables import BarGroups, Cell, Column, Density, Entry, Table, shares

_LayerAurocs = Mapping[str, Mapping[str, float]]
#: The row of the combined score, beside the single layers.
COMBINED = "all layers together"
_CURVES, _POINTS = 5, 200  # ROC curves in a picture, and points of a curve
_BINS, _ROW = 44, 88
_TITLE = "Score distributions"
_NO_SCORES = "The scores are not in this folder, so there is nothing to draw here."


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
            inside, shifted, outside = (
                _read(results, row, names)
                for names in (results.names("id"), results.names("csid"), ood_sets(results))
            )
            if inside and outside:
                known = {name: row.metrics.get(name, {}).get("AUROC") for name in outside}
                aurocs = {n: a for n, a in known.items() if a is not None and isfinite(a)}
                return RunScores(row.run, next(iter(inside.values())), shifted, outside, aurocs)
    return None


def _read(results: Results, row: Row, names: Sequence[str]) -> dict[str, Scores]:
    """Dataset -> scores, for datasets with at least one finite score."""
    found = {name: results.scores(row.run, row.method, name) for name in names}
    return {n: scored for n, scored in found.items() if scored is not None and finite(scored).size}


def distributions(results: Results, methods: Sequence[RankedMethod]) -> Optional[Section]:
    """Score histograms of our methods, the best other method, and MSP."""
    scored = _best(results, methods, 1, "msp")
    if not scored:
        worked = any(m.status == "ok" for m in methods)
        nothing = Pictures("panels", [], text=_NO_SCORES)
        return Section("scores", _TITLE, [nothing]) if worked and ood_sets(results) else None
    text = (
        f"{_runs(scored)} Histograms are scaled to the same area: the less the two overlap, the "
        "better the method tells ID from OOD."
    )
    legend = [("key key-id", f"{set_title(results.id_name)} test samples (ID)")]
    if any(sample.shifted for _, sample in scored):
        legend.append(("", "dotted: ID under covariate shift"))
    legend.append(("key key-ood", "OOD samples"))
    pictures = [_histograms(own, name) for name, own in _by_set(results, scored)]
    return Section("scores", _TITLE, [Pictures("panels", pictures, text=text, legend=legend)])


def rocs(results: Results, methods: Sequence[RankedMethod]) -> Optional[Section]:
    """ROC curves of our methods and the best other ones; None without scores."""
    ours = sum(m.ours for m in methods if m.status == "ok")
    scored = _best(results, methods, max(_CURVES - ours, 1))
    scored = sorted(scored, key=lambda pair: not pair[0].ours)
    if not scored:
        return None  # the section about distributions says why
    text = (
        f"Our methods and the best other methods. {_runs(scored)} {SHOWN['FPR@95']} can be read "
        f"off where a curve meets the horizontal dotted line; {SHOWN['FPR@95_IN']} is 100 minus "
        "its height at the vertical dotted line."
    )
    pictures = [_curves(scored, name) for name, _ in _by_set(results, scored)]
    return Section("roc", "ROC curves", [Pictures("panels", pictures, text=text)])


def _best(results: Results, methods: Sequence[RankedMethod], others: int, *more: str) -> _Scored:
    """The scores of our methods, the first of the others, and those named in `more`."""
    worked = [m for m in methods if m.status == "ok"]
    best = [m for m in worked if not m.ours][:others]
    chosen = [m for m in worked if m.ours or m in best]
    chosen += [m for m in worked if m.method in more and m not in chosen]
    found = [(m, run_scores(results, m.method)) for m in chosen]
    return [(m, sample) for m, sample in found if sample is not None]


def _by_set(results: Results, scored: _Scored) -> list[tuple[str, _Scored]]:
    """OOD datasets, and the methods with scores of them."""
    sets = [(n, [pair for pair in scored if n in pair[1].outside]) for n in ood_sets(results)]
    return [(name, own) for name, own in sets if own]


def _runs(scored: _Scored) -> str:
    runs = list(dict.fromkeys(sample.run for _, sample in scored))
    return f"Checkpoint{'' if len(runs) == 1 else 's'} {', '.join(runs)}."


def _histograms(scored: _Scored, dataset: str) -> Picture:
    """A row for each method: ID filled, OOD as a line, of the same area."""
    height = 26 + _ROW * len(scored)
    drawn, texts = [], []
    for m, sample in scored:
        inside, outside = finite(sample.inside), finite(sample.outside[dataset])
        # fewer samples, wider bins
        bins = int(np.clip(1.2 * (len(inside) + len(outside)) ** 0.5, 12, _BINS))
        value = sample.aurocs.get(dataset)
        note = "" if value is None else f"AUROC {value:.1f} %"
        panel = Density.of(inside, outside, bins=bins, note=note)
        drawn.append((m, panel, [shares(finite(s), panel.edges) for s in sample.shifted.values()]))
        medians = f"ID {np.median(inside):.3g}, OOD {np.median(outside):.3g}"
        texts.append(f"{m.title}: median score {medians}{note and f', {note}'}")

    def paint(figure: Any) -> None:
        for i, (m, panel, shifted) in enumerate(drawn):
            bottom = 1 - (_ROW * (i + 1) - 4) / height
            axis = figure.add_axes((0.03, bottom, 0.94, (_ROW - 32) / height))
            for each in shifted:
                axis.stairs(each, panel.edges, color=ID_COLOR, ls=":", lw=1.2)
            draw_density(axis, panel, ticks=5)
            style = {"weight": "bold", "color": OUR_COLOR} if m.ours else {}
            axis.set_title(m.title, fontsize=9.5, pad=5, **style)
            axis.set_title(panel.note, loc="right", fontsize=9.5, pad=5)
        label = "score (higher = more in-distribution) \u2192"
        figure.text(0.97, 5 / height, label, ha="right", fontsize=8.5, color=FAINT)

    title = set_title(dataset)
    alt = f"Scores of ID test samples and {title}. {'; '.join(texts)}."
    return Picture(title, alt, (300, height), paint)


def _curves(scored: _Scored, dataset: str) -> Picture:
    """ROC curves for one OOD dataset; OOD is the positive class, as in OpenOOD.

    A method keeps its color over all datasets.
    """
    texts = {}
    for m, sample in scored:
        value = sample.aurocs.get(dataset)
        texts[m.method] = m.title if value is None else f"{value:.1f}  {m.title}"

    def paint(figure: Any) -> None:
        axis = figure.add_axes((0.145, 0.15, 0.825, 0.83))
        axis.plot([0, 100], [0, 100], color=GRID, lw=1)
        for line, at in ((axis.axhline, 95), (axis.axvline, 5)):
            line(at, color=FAINT, lw=0.7, ls=(0, (2, 3)))
        for i, (m, sample) in enumerate(scored):
            if dataset in sample.outside:
                color, width = (OUR_COLOR, 2.2) if m.ours else (OTHERS[i % len(OTHERS)], 1.5)
                style = {"color": color, "lw": width, "ls": DASHES[i % len(DASHES)]}
                points = roc_points(sample.id_scores(), finite(sample.outside[dataset]))
                axis.plot(*points, label=texts[m.method], **style)
        axis.set(xlim=(0, 100), ylim=(0, 100.5), xlabel="ID samples rejected, %")
        axis.set_ylabel("OOD samples found, %", labelpad=2)
        axis.legend(loc="lower right", handlelength=2.6, title="AUROC, %", alignment="left")

    title = set_title(dataset)
    alt = (
        f"ROC curves of ID test samples and {title}; AUROC in percent: {', '.join(texts.values())}."
    )
    return Picture(title, alt, (300, 290), paint)


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


def layers_section(results: Results, methods: Sequence[RankedMethod]) -> Optional[Section]:
    """AUROC and mean scores of each layer of our methods; None without scores by layer."""
    blocks: list[Content] = []
    ours = [m for m in methods if m.ours]
    for m in ours:
        sample = run_scores(results, m.method)
        aurocs = layer_aurocs(sample) if sample is not None else {}
        runs = [row.run for row in results.rows if row.method == m.method]
        names = ood_sets(results)
        if sample is not None and aurocs:
            blocks += [Heading(m.title)] if len(ours) > 1 else []
            blocks += _layer_blocks(results, sample, aurocs)
        elif sample is None and any(results.scores(r, m.method, n) for r in runs for n in names):
            blocks.append(
                f"{m.title}: the scores of ID data are missing or damaged. Run the comparison "
                "again to make them."
            )
    return Section("layers", "What each layer contributes", blocks) if blocks else None


def _layer_blocks(results: Results, sample: RunScores, aurocs: _LayerAurocs) -> Iterator[Content]:
    yield f"Checkpoint {sample.run}. {_best_layer(aurocs)}"
    read = {*sample.shifted, *sample.outside}
    lacking = [n for n in (*results.names("csid"), *ood_sets(results)) if n not in read]
    if lacking:
        names = ", ".join(map(set_title, lacking))
        yield (
            f"Without {names}: the scores are missing or damaged. Run the comparison again to make "
            "them."
        )
    sets = list(dict.fromkeys(n for values in aurocs.values() for n in values))
    title = "AUROC of each layer alone and of all layers together"
    rows = [(set_title(n), [own.get(n) for own in aurocs.values()]) for n in sets]
    bars = BarGroups("layers", title, "AUROC, % (50 is chance)", list(aurocs), rows, 50.0)
    yield Pictures("wide", [picture_of(bars)])
    best = {n: max(v[n] for v in aurocs.values() if n in v) for n in sets}
    lines: list[list[Entry]] = []
    for layer, own in aurocs.items():
        cells = {n: Cell(f"{v:.2f}", value=v, best=v == best[n]) for n, v in own.items()}
        lines.append([layer, *map(cells.get, sets)])
    columns = [Column("Layer", number=False)]
    columns += [Column(set_title(n), better="higher") for n in sets]
    last = [number for number, layer in enumerate(aurocs) if layer == COMBINED]
    yield Table("AUROC of each layer, %", columns, lines, last)
    yield Pictures(
        "quads",
        [_layer_means(results, sample, layer) for layer in aurocs if layer != COMBINED],
        title="Mean score of each layer",
        text="In-distribution samples should score higher than OOD samples.",
    )


def _layer_means(results: Results, sample: RunScores, layer: str) -> Picture:
    """The mean score of a layer on ID data and on every OOD dataset."""
    inside = {f"{set_title(results.id_name)} (ID)": sample.inside, **sample.shifted}
    scored = {set_title(n): finite(s, layer) for n, s in {**inside, **sample.outside}.items()}
    rows = [(title, [float(values.mean())]) for title, values in scored.items() if values.size]
    ours = list(map(set_title, inside))
    return bars_picture(
        BarGroups(layer, layer, "mean score", [layer], rows, end=0, ours=ours), width=240
    )


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
