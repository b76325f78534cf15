"""What each layer contributes to our methods."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Optional, Sequence

import numpy as np

from nac_openood.benchmark.run.results import Results
from nac_openood.core.ranking import auroc
from nac_openood.report.blocks import (
    Block,
    Cell,
    Column,
    Heading,
    Line,
    Picture,
    Pictures,
    Section,
    Table,
)
from nac_openood.report.figures import canvas
from nac_openood.report.figures.sample import RunScores, finite, sample_of
from nac_openood.report.order import Standing, ood_sets
from nac_openood.report.words import alt_text, set_title

LayerAurocs = Mapping[str, Mapping[str, float]]
#: The row of the combined score, beside the single layers.
COMBINED = "all layers together"


def layers_section(results: Results, order: Sequence[Standing]) -> Optional[Section]:
    """AUROC and mean scores of each layer; None without scores by layer."""
    blocks: list[Block] = []
    ours = [s for s in order if s.ours]
    for s in ours:
        sample = sample_of(results, s.method)
        aurocs = layer_aurocs(sample) if sample is not None else {}
        if sample is None and _has_scores(results, s.method):
            blocks.append(
                f"{s.title}: the scores of ID data are missing or damaged. Run the comparison "
                "again to make them."
            )
        if sample is not None and aurocs:
            blocks += [Heading(s.title)] if len(ours) > 1 else []
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
        yield (
            f"Without {', '.join(map(set_title, lacking))}: the scores are missing or damaged. Run "
            "the comparison again to make them."
        )
    yield Pictures("single", [auroc_picture(aurocs)])
    yield _table(aurocs)
    yield Pictures(
        "quads",
        mean_pictures(sample, f"{set_title(results.id_name)} (ID)"),
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


def _table(aurocs: LayerAurocs) -> Table:
    sets = list(dict.fromkeys(n for values in aurocs.values() for n in values))
    best = {n: max(v[n] for v in aurocs.values() if n in v) for n in sets}
    lines = []
    for layer, values in aurocs.items():
        cells = [
            Cell(f"{values[n]:.2f}", value=values[n], best=values[n] == best[n])
            if n in values
            else Cell()
            for n in sets
        ]
        lines.append(Line([Cell(layer), *cells], ours=layer == COMBINED))
    columns = [Column(set_title(n), better="higher") for n in sets]
    return Table("AUROC of each layer, %", [Column("Layer", "name"), *columns], lines)


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


def auroc_picture(aurocs: LayerAurocs) -> Picture:
    """A row for each OOD dataset with a mark for each layer and one for all together."""
    sets = list(dict.fromkeys(n for values in aurocs.values() for n in values))
    top = 28 + 16 * (len(aurocs) // 5)
    height = 46 + top + 30 * len(sets)

    def paint(figure: Any) -> None:
        axis = figure.add_axes((0.2, 40 / height, 0.77, 1 - (40 + top) / height))
        for y, name in enumerate(sets):
            here = [v[name] for v in aurocs.values() if name in v]
            axis.plot(
                [min(here), max(here)], [y, y], color=canvas.GRID, lw=4, solid_capstyle="round"
            )
        for i, (layer, values) in enumerate(aurocs.items()):
            rows = [sets.index(n) for n in values]
            axis.scatter(list(values.values()), rows, label=layer, **_look(i, layer))
        canvas.name_rows(axis, [set_title(n) for n in sets])
        axis.set_xlabel("AUROC, %")
        axis.grid(axis="x")
        axis.legend(loc="lower left", bbox_to_anchor=(-0.27, 1), ncols=5, columnspacing=1.2,
                    handletextpad=0.2)  # fmt: skip

    title = "AUROC of each layer alone and of all layers together"
    listed = ((k, [(set_title(n), v) for n, v in row.items()]) for k, row in aurocs.items())
    return Picture(title, alt_text(f"{title}, in percent", listed), (500, height), paint)


def _look(i: int, layer: str) -> dict[str, Any]:
    look = {"edgecolor": canvas.PAPER, "zorder": 5}
    if layer == COMBINED:
        return {**look, "marker": "D", "s": 64, "color": canvas.OUR_COLOR}
    colors = (*canvas.OTHERS, canvas.INK, canvas.FAINT)
    marker, color = canvas.MARKERS[i % len(canvas.MARKERS)], colors[i % len(colors)]
    return {**look, "marker": marker, "s": 40, "color": color, "lw": 0.6, "zorder": 3}


def mean_pictures(sample: RunScores, id_title: str) -> list[Picture]:
    """For each layer its mean score on ID data and on every OOD dataset."""
    inside = [(id_title, sample.inside), *sample.shifted.items()]
    sets = [(set_title(n), s, True) for n, s in inside]
    sets += [(set_title(n), s, False) for n, s in sample.outside.items()]
    found = []
    for layer in sample.inside.by_layer:
        scores = [(title, finite(s, layer), is_id) for title, s, is_id in sets]
        means = [(title, float(s.mean()), is_id) for title, s, is_id in scores if s.size]
        if means:
            found.append(_mean_picture(layer, means))
    return found


def _mean_picture(layer: str, means: Sequence[tuple[str, float, bool]]) -> Picture:
    """Rows of (dataset, mean score, whether it counts as ID)."""
    height = 44 + 19 * len(means)

    def paint(figure: Any) -> None:
        axis = figure.add_axes((0.4, 36 / height, 0.46, 1 - 44 / height))
        for y, (_, value, is_id) in enumerate(means):
            color, marker = (canvas.ID_COLOR, "o") if is_id else (canvas.OOD_COLOR, "s")
            axis.plot([0, value], [y, y], color=color, lw=1.6, ls="-" if is_id else "--")
            axis.plot([value], [y], color=color, marker=marker, ms=6)
            canvas.write_value(axis, value, y, f"{value:.3g}")
        canvas.name_rows(axis, [title for title, _, _ in means])
        low, high = min(0.0, *(m[1] for m in means)), max(0.0, *(m[1] for m in means))
        axis.set_xlim(low, high * 1.05 if high > low else low + 1)
        axis.spines["left"].set_visible(True)
        axis.locator_params(axis="x", nbins=3)
        axis.set_xlabel("mean score")

    listed = ", ".join(f"{title} {value:.3g}" for title, value, _ in means)
    return Picture(layer, f"Mean score of layer {layer}: {listed}.", (240, height), paint)
