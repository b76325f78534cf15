"""What each layer contributes to NAC."""

from __future__ import annotations

from typing import Mapping, Optional

from nac_openood.compare.results import Results
from nac_openood.report.figures.layers import (
    COMBINED,
    draw_layer_aurocs,
    draw_layer_means,
    layer_aurocs,
    layer_means,
    strongest,
)
from nac_openood.report.figures.sample import sample_of
from nac_openood.report.markup import Html, el, figure, scroll_box, section
from nac_openood.report.order import NAC
from nac_openood.report.words import NOTHING, set_title


def layers(results: Results) -> Optional[Html]:
    """AUROC of each layer alone, and its mean scores; None without scores by layer."""
    sample = sample_of(results, NAC)
    aurocs = layer_aurocs(sample) if sample is not None else {}
    if sample is None or not aurocs:
        return None
    id_title = f"{set_title(results.id_name)} (ID)"
    pictures = [
        figure(draw_layer_means(f"layer-{i}", layer, means, id_title, list(sample.shifted)))
        for i, (layer, means) in enumerate(layer_means(sample).items())
        if means
    ]
    text = f"Checkpoint {sample.run}. {_finding(aurocs)}"
    return section(
        "layers",
        "What each layer contributes",
        el("p", text),
        figure(draw_layer_aurocs("layer-aurocs", aurocs), cls="single roomy"),
        scroll_box("AUROC of each layer", _table(aurocs)),
        el("h3", "Mean score of each layer"),
        el("p", "In-distribution images should score higher than OOD images."),
        el("div", *pictures, cls="grid quads"),
    )


def _finding(aurocs: Mapping[str, Mapping[str, float]]) -> str:
    found = strongest(aurocs)
    if found is None:
        return ""
    name, alone, together = found
    side = "above" if together >= alone else "below"
    return (
        f"Averaged over OOD sets, all layers together reach {together:.2f} % AUROC, "
        f"{abs(together - alone):.2f} points {side} the best single layer ({name}, {alone:.2f} %)."
    )


def _table(aurocs: Mapping[str, Mapping[str, float]]) -> Html:
    sets = list(dict.fromkeys(n for values in aurocs.values() for n in values))
    best = {n: max(v[n] for v in aurocs.values() if n in v) for n in sets}
    heads = [el("th", "AUROC, %", scope="col")]
    heads += [el("th", set_title(n), scope="col", cls="num") for n in sets]
    rows = []
    for layer, values in aurocs.items():
        cells = []
        for n in sets:
            text = f"{values[n]:.2f}" if n in values else NOTHING
            strong = values.get(n) == best[n]
            shown = el("b", text, " ", el("small", "best")) if strong else text
            cells.append(el("td", shown, cls="num"))
        mark = "nac" if layer == COMBINED else None
        rows.append(el("tr", el("th", layer, scope="row"), *cells, cls=mark))
    return el("table", el("thead", el("tr", *heads)), el("tbody", *rows))
