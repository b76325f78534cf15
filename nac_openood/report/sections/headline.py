"""Where NAC stands, before anything else."""

from __future__ import annotations

from typing import Iterator, Optional, Sequence

from nac_openood.compare.results import Results
from nac_openood.report.markup import Html, el, join
from nac_openood.report.order import NAC, Standing, find, measured_groups
from nac_openood.report.words import (
    GROUP_HEADS,
    number,
    ordinal,
    quantity,
    set_title,
    verdict,
)


def headline(results: Results, order: Sequence[Standing]) -> Html:
    """The title, one sentence, and the numbers behind it."""
    id_title = set_title(results.id_name)
    tiles = list(_tiles(results, order))
    return el(
        "header",
        el("p", f"Out-of-distribution detection \u00b7 {results.arch}", cls="kicker"),
        el("h1", f"{id_title}: how NAC compares"),
        el("p", verdict(results, order), cls="verdict"),
        el("p", _facts(results, order), cls="facts"),
        el("div", *tiles, cls="tiles") if tiles else None,
    )


def _facts(results: Results, order: Sequence[Standing]) -> str:
    worked = sum(s.status == "ok" for s in order)
    images = sum(s.images for s in results.sets)
    sets = len(results.names("near")) + len(results.names("far"))
    accuracies = [r.accuracy for r in results.runs if r.accuracy is not None]
    parts = [
        f"{worked} of {len(order)} methods with a result",
        f"{len(results.runs)} checkpoint{'' if len(results.runs) == 1 else 's'}",
        f"{sets} OOD sets",
        f"{images:,} test images",
    ]
    if accuracies:
        low, high = min(accuracies), max(accuracies)
        span = f"{low:.2f}" if low == high else f"{low:.2f}\u2013{high:.2f}"
        parts.append(f"{span} % ID accuracy")
    return " \u00b7 ".join(parts)


def _tiles(results: Results, order: Sequence[Standing]) -> Iterator[Html]:
    nac = find(order, NAC)
    if nac is None or nac.status != "ok":
        return
    for group in measured_groups(results):
        if nac.value(group) is None:
            continue
        title = GROUP_HEADS[group]
        ranked = sum(s.value(group) is not None for s in order)
        place = join(ordinal(nac.ranks[group]), el("small", f" of {ranked}"))
        yield _tile(f"{title} rank", place, "by AUROC")
        below = f"FPR@95 {number(nac.value(group, 'FPR@95'), 1)}"
        yield _tile(f"{title} AUROC", _with_spread(number(nac.value(group))), below)
    if "ms_per_image" in nac.times:
        below = f"set up in {quantity(nac.times.get('setup_seconds'))} s"
        shown = join(quantity(nac.times["ms_per_image"]), el("small", " ms"))
        yield _tile("Time per image", shown, below)


def _with_spread(text: str) -> Html:
    mean, _, spread = text.partition(" ")
    return join(mean, el("small", f" {spread}") if spread else None)


def _tile(name: str, value: Html, below: Optional[str]) -> Html:
    return el(
        "div",
        el("div", name, cls="tile-name"),
        el("div", value, cls="tile-value"),
        el("div", below, cls="tile-below"),
        cls="tile",
    )
