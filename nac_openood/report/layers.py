"""The section on what each layer contributes to our methods."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Optional, Sequence

import numpy as np

from nac_openood.benchmark.run.results import Results
from nac_openood.core.metrics import auroc
from nac_openood.report import drawing
from nac_openood.report.blocks import Block, Heading, Picture, Pictures, Section
from nac_openood.report.formatting import alt_text, set_title
from nac_openood.report.methods import RankedMethod, ood_sets
from nac_openood.report.scores import RunScores, finite, run_scores
from nac_openood.tables import Cell, Column, Entry, Table

LayerAurocs = Mapping[str, Mapping[str, float]]
#: The row of the combined score, beside the single layers.
COMBINED = "all layers together"
_AGAIN = "missing or damaged. Run the comparison again to make them."


def layers_section(results: Results, methods: Sequence[RankedMethod]) -> Optional[Section]:
    """AUROC and mean scores of each layer; None without scores by layer."""
    blocks: list[Block] = []
    ours = [m for m in methods if m.ours]
    for m in ours:
        sample = run_scores(results, m.method)
        aurocs = layer_aurocs(sample) if sample is not None else {}
        if sample is None and _has_scores(results, m.method):
            blocks.append(f"{m.title}: the scores of ID data are {_AGAIN}")
        if sample is not None and aurocs:
            blocks += [Heading(m.title)] if len(ours) > 1 else []
            blocks += _blocks(results, sample, aurocs)
    return Section("layers", "What each layer contributes", blocks) if blocks else None


def _has_scores(results: Results, method: str) -> bool:
    """Whether there are scores of any OOD set."""
    runs = [row.run for row in results.rows if row.method == method and row.status == "ok"]
    return any(results.scores(run, method, n) for run in runs for n in ood_sets(results))


def _blocks(results: Results, sample: RunScores, aurocs: LayerAurocs) -> Iterator[Block]:
    yield f"Checkpoint {sample.run}. {_finding(aurocs)}"
    read = {*sample.shifted, *sample.outside}
    lacking = [n for n in (*results.names("csid"), *ood_sets(results)) if n not in read]
    if lacking:
        yield f"Without {', '.join(map(set_title, lacking))}: the scores are {_AGAIN}"
    sets = list(dict.fromkeys(n for values in aurocs.values() for n in values))
    yield Pictures("single", [_auroc_picture(aurocs, sets)])
    columns = [Column(set_title(n), better="higher") for n in sets]
    best = {n: max(v[n] for v in aurocs.values() if n in v) for n in sets}
    rows: list[list[Entry]] = []
    for layer, own in aurocs.items():
        cells = [Cell(f"{v:.2f}", value=v, best=v == best[n]) for n, v in own.items()]
        by_set = dict(zip(own, cells))
        rows.append([layer, *map(by_set.get, sets)])
    ours = [number for number, layer in enumerate(aurocs) if layer == COMBINED]
    yield Table("AUROC of each layer, %", [Column("Layer", number=False), *columns], rows, ours)
    inside = {f"{set_title(results.id_name)} (ID)": sample.inside, **sample.shifted}
    yield Pictures(
        "quads",
        [_mean_picture(sample, inside, layer) for layer in aurocs if layer != COMBINED],
        title="Mean score of each layer",
        text="In-distribution samples should score higher than OOD samples.",
    )


def _finding(aurocs: LayerAurocs) -> str:
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


def _auroc_picture(aurocs: LayerAurocs, sets: Sequence[str]) -> Picture:
    """A row for each OOD dataset with a mark for each layer and one for all together."""
    top = 28 + 16 * (len(aurocs) // 5)
    height = 46 + top + 30 * len(sets)
    colors = (*drawing.OTHERS, drawing.INK, drawing.FAINT)

    def paint(figure: Any) -> None:
        axis = figure.add_axes((0.2, 40 / height, 0.77, 1 - (40 + top) / height))
        for y, name in enumerate(sets):
            own = [v[name] for v in aurocs.values() if name in v]
            ends = [min(own), max(own)]
            axis.plot(ends, [y, y], color=drawing.GRID, lw=4, solid_capstyle="round")
        for i, (layer, values) in enumerate(aurocs.items()):
            look: dict[str, Any] = {
                "marker": drawing.MARKERS[i % len(drawing.MARKERS)], "s": 40,
                "color": colors[i % len(colors)], "lw": 0.6, "zorder": 3,
            }  # fmt: skip
            if layer == COMBINED:
                look = {"marker": "D", "s": 64, "color": drawing.OUR_COLOR, "zorder": 5}
            rows = [sets.index(n) for n in values]
            axis.scatter(list(values.values()), rows, label=layer, edgecolor=drawing.PAPER, **look)
        drawing.name_rows(axis, [set_title(n) for n in sets])
        axis.set_xlabel("AUROC, %")
        axis.grid(axis="x")
        axis.legend(loc="lower left", bbox_to_anchor=(-0.27, 1), ncols=5, columnspacing=1.2,
                    handletextpad=0.2)  # fmt: skip

    title = "AUROC of each layer alone and of all layers together"
    listed = ((k, [(set_title(n), v) for n, v in row.items()]) for k, row in aurocs.items())
    return Picture(title, alt_text(f"{title}, in percent", listed), (500, height), paint)


def _mean_picture(sample: RunScores, inside: Mapping[str, Any], layer: str) -> Picture:
    """The mean score of a layer on ID data and on every OOD dataset."""
    scored = [(name, finite(s, layer), True) for name, s in inside.items()]
    scored += [(name, finite(s, layer), False) for name, s in sample.outside.items()]
    means = [(set_title(name), float(s.mean()), is_id) for name, s, is_id in scored if s.size]
    height = 44 + 19 * len(means)

    def paint(figure: Any) -> None:
        axis = figure.add_axes((0.4, 36 / height, 0.46, 1 - 44 / height))
        for y, (_, value, is_id) in enumerate(means):
            color, marker = (drawing.ID_COLOR, "o") if is_id else (drawing.OOD_COLOR, "s")
            axis.plot([0, value], [y, y], color=color, lw=1.6, ls="-" if is_id else "--")
            axis.plot([value], [y], color=color, marker=marker, ms=6)
            drawing.write_value(axis, value, y, f"{value:.3g}")
        drawing.name_rows(axis, [title for title, _, _ in means])
        low, high = min(0.0, *(m[1] for m in means)), max(0.0, *(m[1] for m in means))
        axis.set_xlim(low, high * 1.05 if high > low else low + 1)
        axis.spines["left"].set_visible(True)
        axis.locator_params(axis="x", nbins=3)
        axis.set_xlabel("mean score")

    listed = ", ".join(f"{title} {value:.3g}" for title, value, _ in means)
    return Picture(layer, f"Mean score of layer {layer}: {listed}.", (240, height), paint)
