"""What each layer adds to a score that is combined from layers."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import numpy as np

from nac_openood.core.ranking import auroc
from nac_openood.report.blocks import Picture
from nac_openood.report.figures.canvas import (
    FAINT,
    GRID,
    ID_COLOR,
    INK,
    MARKERS,
    OOD_COLOR,
    OTHERS,
    OUR_COLOR,
    PAPER,
    name_rows,
    write_value,
)
from nac_openood.report.figures.sample import Sample, finite
from nac_openood.report.words import set_title

#: The row of the combined score, beside the single layers.
COMBINED = "all layers together"


def layer_aurocs(sample: Sample) -> dict[str, dict[str, float]]:
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


def strongest(aurocs: Mapping[str, Mapping[str, float]]) -> Optional[tuple[str, float, float]]:
    """The best single layer by mean AUROC: its name, its mean, and that of all layers together."""
    means = {layer: float(np.mean(list(v.values()))) for layer, v in aurocs.items() if v}
    together = means.pop(COMBINED, None)
    if together is None or not means:
        return None
    best = max(means, key=lambda layer: means[layer])
    return best, means[best], together


def auroc_picture(aurocs: Mapping[str, Mapping[str, float]]) -> Picture:
    """A row for each OOD dataset with a mark for each layer and one for all together."""
    sets = list(dict.fromkeys(n for values in aurocs.values() for n in values))
    top = 28 + 16 * (len(aurocs) // 5)
    height = 46 + top + 30 * len(sets)

    def paint(figure: Any) -> None:
        axis = figure.add_axes((0.2, 40 / height, 0.77, 1 - (40 + top) / height))
        for y, name in enumerate(sets):
            here = [v[name] for v in aurocs.values() if name in v]
            axis.plot([min(here), max(here)], [y, y], color=GRID, lw=4, solid_capstyle="round")
        for i, (layer, values) in enumerate(aurocs.items()):
            rows = [sets.index(n) for n in values]
            axis.scatter(list(values.values()), rows, label=layer, **_look(i, layer))
        name_rows(axis, [set_title(n) for n in sets])
        axis.set_xlabel("AUROC, %")
        axis.grid(axis="x")
        axis.legend(loc="lower left", bbox_to_anchor=(-0.27, 1), ncols=5, columnspacing=1.2,
                    handletextpad=0.2)  # fmt: skip

    listed = "; ".join(
        f"{layer}: " + ", ".join(f"{set_title(n)} {v:.1f} %" for n, v in values.items())
        for layer, values in aurocs.items()
    )
    title = "AUROC of each layer alone and of all layers together"
    return Picture(title, f"{title}. {listed}.", (500, height), paint)


def _look(i: int, layer: str) -> dict[str, Any]:
    if layer == COMBINED:
        return {"marker": "D", "s": 64, "color": OUR_COLOR, "edgecolor": PAPER, "zorder": 5}
    marker, color = MARKERS[i % len(MARKERS)], (*OTHERS, INK, FAINT)[i % (len(OTHERS) + 2)]
    return {"marker": marker, "s": 40, "color": color, "edgecolor": PAPER, "lw": 0.6, "zorder": 3}


def mean_pictures(sample: Sample, id_title: str) -> list[Picture]:
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
            color, marker = (ID_COLOR, "o") if is_id else (OOD_COLOR, "s")
            axis.plot([0, value], [y, y], color=color, lw=1.6, ls="-" if is_id else "--")
            axis.plot([value], [y], color=color, marker=marker, ms=6)
            write_value(axis, value, y, f"{value:.3g}")
        name_rows(axis, [title for title, _, _ in means])
        low, high = min(0.0, *(m[1] for m in means)), max(0.0, *(m[1] for m in means))
        axis.set_xlim(low, high * 1.05 if high > low else low + 1)
        axis.spines["left"].set_visible(True)
        axis.locator_params(axis="x", nbins=3)
        axis.set_xlabel("mean score")

    listed = ", ".join(f"{title} {value:.3g}" for title, value, _ in means)
    return Picture(layer, f"Mean score of layer {layer}: {listed}.", (240, height), paint)
