"""The ranked tables: near and far, then every data set."""

from __future__ import annotations

from typing import Optional, Sequence

from nac_openood.compare.results import Results, Value
from nac_openood.report.markup import Html, el, join, scroll_box, section
from nac_openood.report.order import NAC, Standing, measured_groups, ood_sets
from nac_openood.report.words import (
    GROUP_HEADS,
    NOTHING,
    number,
    ordinal,
    quantity,
    set_title,
)

_SHOWN = ("AUROC", "FPR@95")


def leaderboard(results: Results, order: Sequence[Standing]) -> Html:
    """Near and far means, times, whose code; methods without a result at the bottom."""
    groups = measured_groups(results)
    heads = [_head("#", "number"), _head("Method", "text")]
    for group in groups:
        heads += [
            _head(f"{GROUP_HEADS[group]} {metric}", "number", _direction(metric))
            for metric in _SHOWN
        ]
    heads += [
        _head("ms / image", "number"),
        _head("Setup, s", "number"),
        _head("Implementation", "text"),
    ]
    rows = [_row(place, s, groups) for place, s in enumerate(order, 1)]
    table = el(
        "table",
        el("thead", el("tr", *heads)),
        el("tbody", *rows),
        cls="ranked sortable",
    )
    text = (
        "Percent, mean \u00b1 standard deviation over checkpoints. Ordered by near-OOD AUROC "
        "(by far-OOD where there is no near-OOD); 1st, 2nd and 3rd mark the best three of each "
        "AUROC column. Choose a column's heading to sort by it."
    )
    return section("ranking", "Ranking", el("p", text), scroll_box("Ranking of methods", table))


def by_set(results: Results, order: Sequence[Standing]) -> Optional[Html]:
    """AUROC and FPR@95 of every data set."""
    names, worked = ood_sets(results), [s for s in order if s.status == "ok"]
    if not names or not worked:
        return None
    tables = []
    for metric in _SHOWN:
        heads = [_head("Method", "text"), *(_set_head(results, n, metric) for n in names)]
        rows = [
            el(
                "tr",
                _method(s),
                *(_cell(s.value(n, metric), s.ranks.get(n), metric) for n in names),
                cls=_mark(s),
            )
            for s in worked
        ]
        table = el(
            "table", el("thead", el("tr", *heads)), el("tbody", *rows), cls="ranked sortable"
        )
        title = f"{metric} by data set, % ({_direction(metric)} is better)"
        tables += [el("h3", title), scroll_box(title, table)]
    return section("sets", "Every data set", *tables)


def _row(place: int, s: Standing, groups: Sequence[str]) -> Html:
    if s.status != "ok":
        reason = el("td", el("b", s.status), f": {s.error}", colspan=str(2 * len(groups) + 2))
        # cells behind a colspan cannot be sorted by, so such rows always stay at the bottom
        whose = el("td", s.implementation)
        return el("tr", el("td", NOTHING, cls="num"), _method(s), reason, whose, cls="none")
    cells = [_cell(s.value(g, m), s.ranks.get(g), m) for g in groups for m in _SHOWN]
    times = [_time(s.times.get(k)) for k in ("ms_per_image", "setup_seconds")]
    partly = f"; {s.runs_ok} of {s.runs} runs ({s.error})" if s.runs_ok < s.runs else ""
    whose = el("td", s.implementation + partly, cls=None if partly else "one-line")
    number_cell = el("td", str(place), cls="num", data_value=str(place))
    return el("tr", number_cell, _method(s), *cells, *times, whose, cls=_mark(s))


def _method(s: Standing) -> Html:
    return el("th", s.title, scope="row", title=s.method, data_value=s.title)


def _mark(s: Standing) -> Optional[str]:
    return "nac" if s.method == NAC else None


def _cell(value: Optional[Value], rank: Optional[int], metric: str) -> Html:
    if value is None:
        return el("td", NOTHING, cls="num")
    medal = None
    if metric == "AUROC" and rank is not None and rank <= 3:
        medal = el("span", ordinal(rank), cls=f"medal m{rank}")
    mean, _, spread = number(value).partition(" ")
    shown = join(medal, mean, el("small", f" {spread}") if spread else None)
    return el("td", shown, cls="num", data_value=repr(value.mean))


def _time(value: Optional[float]) -> Html:
    return el("td", quantity(value), cls="num", data_value=None if value is None else repr(value))


def _direction(metric: str) -> str:
    return "higher" if metric == "AUROC" else "lower"


def _head(text: str, kind: str, better: Optional[str] = None) -> Html:
    arrow = {"higher": " \u2191", "lower": " \u2193"}.get(better or "", "")
    title = None if better is None else f"{better} is better"
    cls = "num" if kind == "number" else None
    return el(
        "th", text + arrow, scope="col", data_sort=kind, data_best=better, title=title, cls=cls
    )


def _set_head(results: Results, name: str, metric: str) -> Html:
    role = next((s.role for s in results.sets if s.name == name), "")
    label = el("small", f"{role}-OOD")
    best = _direction(metric)
    text = (set_title(name), " ", label)
    return el("th", *text, scope="col", data_sort="number", data_best=best, cls="num")
