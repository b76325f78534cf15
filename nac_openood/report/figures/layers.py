"""What each layer adds to NAC's score."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import numpy as np

from nac_openood.ranking import auroc
from nac_openood.report.figures.canvas import (
    FAINT,
    GRID,
    ID_COLOR,
    INK,
    MARKERS,
    NAC_COLOR,
    OOD_COLOR,
    OTHERS,
    PAPER,
    svg,
)
from nac_openood.report.figures.sample import Sample, finite
from nac_openood.report.markup import Html
from nac_openood.report.words import set_title

#: The row of the score itself, beside the layers alone.
COMBINED = "all layers together"


def layer_aurocs(sample: Sample) -> dict[str, dict[str, float]]:
    """Layer (and `COMBINED`) -> OOD set -> AUROC in percent; empty without scores by layer."""
    layers = list(sample.inside.layers)
    found: dict[str, dict[str, float]] = {}
    for layer in (*layers, None) if layers else ():
        inside = sample.id_scores(layer)
        for dataset, scored in sample.outside.items():
            outside = finite(scored, layer)
            if inside.size and outside.size:
                value = 100 * float(auroc(inside, outside))
                found.setdefault(layer or COMBINED, {})[dataset] = value
    return found


def layer_means(sample: Sample) -> dict[str, dict[str, float]]:
    """Layer -> set -> mean score; ID-like sets first."""
    sets = {"": sample.inside, **sample.shifted, **sample.outside}
    return {
        layer: {n: float(finite(s, layer).mean()) for n, s in sets.items() if finite(s, layer).size}
        for layer in sample.inside.layers
    }


def draw_layer_aurocs(key: str, aurocs: Mapping[str, Mapping[str, float]]) -> Html:
    """A line for each OOD set with a mark for each layer alone and one for all together."""
    sets = list(dict.fromkeys(n for values in aurocs.values() for n in values))
    height = 74 + 30 * len(sets) + 16 * (len(aurocs) // 5)

    def draw(figure: Any) -> None:
        top = 28 + 16 * (len(aurocs) // 5)
        axis = figure.add_axes((0.2, 40 / height, 0.77, 1 - (40 + top) / height))
        for y, name in enumerate(sets):
            here = [v[name] for v in aurocs.values() if name in v]
            axis.plot([min(here), max(here)], [y, y], color=GRID, lw=4, solid_capstyle="round")
        for i, (layer, values) in enumerate(aurocs.items()):
            rows = [sets.index(n) for n in values]
            axis.scatter(list(values.values()), rows, label=layer, **_look(i, layer))
        axis.set_yticks(range(len(sets)), [set_title(n) for n in sets])
        axis.set_ylim(len(sets) - 0.5, -0.5)
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
        axis.set_xlabel("AUROC, %")
        axis.grid(axis="x")
        axis.set_axisbelow(True)
        axis.legend(loc="lower left", bbox_to_anchor=(-0.27, 1), ncols=5, columnspacing=1.2,
                    handletextpad=0.2)  # fmt: skip

    listed = "; ".join(
        f"{layer}: " + ", ".join(f"{set_title(n)} {v:.1f} %" for n, v in values.items())
        for layer, values in aurocs.items()
    )
    return svg(
        key, f"AUROC of each layer alone and of all together. {listed}.", (500, height), draw
    )


def _look(i: int, layer: str) -> dict[str, Any]:
    if layer == COMBINED:
        return {"marker": "D", "s": 64, "color": NAC_COLOR, "edgecolor": PAPER, "zorder": 5}
    marker, color = MARKERS[i % len(MARKERS)], (*OTHERS, INK, FAINT)[i % (len(OTHERS) + 2)]
    return {"marker": marker, "s": 40, "color": color, "edgecolor": PAPER, "lw": 0.6, "zorder": 3}


def draw_layer_means(
    key: str, layer: str, means: Mapping[str, float], id_title: str, shifted: Sequence[str]
) -> Html:
    """A layer's mean score on ID images and on every OOD set."""
    names = list(means)
    titles = [set_title(n) if n else id_title for n in names]
    height = 62 + 19 * len(names)

    def draw(figure: Any) -> None:
        axis = figure.add_axes((0.4, 36 / height, 0.46, 1 - 62 / height))
        for y, name in enumerate(names):
            inside = not name or name in shifted
            color, marker = (ID_COLOR, "o") if inside else (OOD_COLOR, "s")
            axis.plot([0, means[name]], [y, y], color=color, lw=1.6, ls="-" if inside else "--")
            axis.plot([means[name]], [y], color=color, marker=marker, ms=6)
            axis.annotate(
                f"{means[name]:.3g}", (means[name], y), (7, 0), textcoords="offset points",
                va="center", fontsize=9, annotation_clip=False,
            )  # fmt: skip
        axis.set_yticks(range(len(names)), titles)
        axis.set_ylim(len(names) - 0.4, -0.6)
        low, high = min([0.0, *means.values()]), max([0.0, *means.values()])
        axis.set_xlim(low, high * 1.05 if high > low else low + 1)
        axis.tick_params(axis="y", length=0)
        axis.locator_params(axis="x", nbins=3)
        axis.set_title(layer, weight="bold", x=-0.84)
        axis.set_xlabel("mean score")

    listed = ", ".join(f"{t} {v:.3g}" for t, v in zip(titles, means.values()))
    return svg(key, f"Mean score of layer {layer}: {listed}.", (240, height), draw)


def strongest(aurocs: Mapping[str, Mapping[str, float]]) -> Optional[tuple[str, float, float]]:
    """The best single layer by mean AUROC: its name, its mean, and that of all together."""
    means = {layer: float(np.mean(list(v.values()))) for layer, v in aurocs.items() if v}
    together = means.pop(COMBINED, None)
    if together is None or not means:
        return None
    best = max(means, key=lambda layer: means[layer])
    return best, means[best], together
