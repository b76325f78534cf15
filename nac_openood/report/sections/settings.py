"""Hyperparameters in use, and what the searches said of them."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from nac_openood.compare.results import Results
from nac_openood.report.chosen import (
    Chosen,
    chosen,
    guard_words,
    nothing_to_choose,
    search_words,
)
from nac_openood.report.markup import Html, el, join, scroll_box, section
from nac_openood.report.order import NAC, Standing
from nac_openood.report.words import plain, settings


def settings_section(results: Results, order: Sequence[Standing]) -> Optional[Html]:
    """NAC's settings layer by layer, then a line for each other method."""
    found = chosen(results)
    place = {s.method: i for i, s in enumerate(order)}
    others = sorted((c for c in found if c.method != NAC), key=lambda c: place[c.method])
    parts = [_nac(c) for c in found if c.method == NAC]
    if others:
        parts += [el("h3", "Other methods"), scroll_box("Hyperparameters", _table(others))]
    without = nothing_to_choose(results)
    if without:
        parts.append(el("p", f"Without hyperparameters: {', '.join(without)}."))
    return section("settings", "Hyperparameters", *parts) if parts else None


def _nac(c: Chosen) -> Html:
    """Nested settings become a table, the rest a line."""
    nested = {k: v for k, v in c.hyperparameters.items() if _is_table(v)}
    flat = {k: v for k, v in c.hyperparameters.items() if k not in nested}
    told = (search_words(c.search), guard_words(c.search))
    return join(
        el("h3", f"{c.title}, {c.runs_text}"),
        *(el("p", t[0].upper() + t[1:] + ".") for t in told if t),
        el("p", el("code", settings(flat))) if flat else None,
        *(scroll_box(f"{k} of {c.title}", _nested(k, v)) for k, v in nested.items()),
    )


def _is_table(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(v, Mapping) for v in value.values())
    )


def _nested(name: str, value: Mapping[str, Mapping[str, Any]]) -> Html:
    keys = list(dict.fromkeys(k for entry in value.values() for k in entry))
    heads = [el("th", name.rstrip("s"), scope="col")]
    heads += [el("th", k, scope="col", cls="num") for k in keys]
    rows = []
    for entry_name, entry in value.items():
        cells = [el("td", plain(entry[k]) if k in entry else "", cls="num") for k in keys]
        rows.append(el("tr", el("th", entry_name, scope="row"), *cells))
    return el("table", el("thead", el("tr", *heads)), el("tbody", *rows))


def _table(found: Sequence[Chosen]) -> Html:
    heads = [el("th", text, scope="col") for text in ("Method", "Runs", "In use", "Search")]
    rows = [
        el(
            "tr",
            el("th", c.title, scope="row"),
            el("td", c.runs_text, cls="one-line"),
            el("td", el("code", settings(c.hyperparameters))),
            el("td", search_words(c.search)),
        )
        for c in found
    ]
    return el("table", el("thead", el("tr", *heads)), el("tbody", *rows), cls="text-table")
