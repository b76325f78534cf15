"""The section on hyperparameters of a comparison, and on how they were found."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from nac_openood.benchmark.run.results import Results, Row
from nac_openood.report.blocks import Content, Heading, Section
from nac_openood.report.formatting import (
    capital,
    count,
    is_number,
    metric,
    one_line,
    percent,
    quantity,
    settings_text,
)
from nac_openood.report.methods import RankedMethod
from nac_openood.tables import Cell, Column, Entry, Table

#: The numbers of a search: key, text, and how to write the number.
_SEARCH: Sequence[tuple[str, str, Callable[[Any], str]]] = (
    ("points", "{}", lambda n: count(n, "point")),
    ("left_out", "{} left out that this data does not allow", lambda n: count(n, "point")),
    ("seconds", "{} s", quantity),
    ("auroc", "validation AUROC {}", percent),
    ("fpr95", f"validation {metric('FPR@95')} {{}}", percent),
    ("fpr95_in", f"validation {metric('FPR@95_IN')} {{}}", percent),
)


def hyperparameters(results: Results, methods: Sequence[RankedMethod]) -> Optional[Section]:
    """Our methods layer by layer, then a row for each other method."""
    chosen = _chosen(results)
    blocks: list[Content] = []
    others: list[list[Entry]] = []
    for m in methods:
        for row, runs in chosen:
            if row.method == m.method and m.ours:
                blocks += _ours(row, runs)
            elif row.method == m.method:
                settings = Cell(settings_text(row.hyperparameters), code=True)
                others.append([row.title, runs, settings, _search(row.search)])
    if others:
        columns = [Column(t, number=False) for t in ("Method", "Runs", "In use", "Search")]
        blocks.append(Table("Other methods", columns, others))
    with_some = {row.method for row, _ in chosen}
    without = [m.title for m in methods if m.status == "ok" and m.method not in with_some]
    if without:
        blocks.append(f"Methods without hyperparameters: {', '.join(without)}.")
    return Section("settings", "Hyperparameters", blocks) if blocks else None


def _chosen(results: Results) -> list[tuple[Row, str]]:
    """Rows of methods that have hyperparameters, and the runs that share those of the row."""
    found: dict[str, list[Row]] = {}
    for row in results.rows:
        if row.status == "ok" and (row.hyperparameters or row.search):
            search = {**(row.search or {}), "seconds": None}  # runs may differ in time only
            key = one_line([row.method, dict(row.hyperparameters), search])
            found.setdefault(key, []).append(row)
    return [(rows[0], ", ".join(row.run for row in rows)) for rows in found.values()]


def _ours(row: Row, runs: str) -> Iterator[Content]:
    """Nested settings become tables, the others a line."""
    nested = {k: v for k, v in row.hyperparameters.items() if _is_table(v)}
    flat = {k: v for k, v in row.hyperparameters.items() if k not in nested}
    yield Heading(f"{row.title}, {runs}")
    search, advice = row.search or {}, row.advice or {}
    texts = [_search(search), _guard(search), f"settings: {settings_text(flat)}" if flat else ""]
    aurocs = [f"{name} {percent(value)}" for name, value in (advice.get("auroc") or {}).items()]
    texts += [f"AUROC on {advice['against']}: {', '.join(aurocs)}"] if aurocs else []
    texts += [*advice.get("warnings", []), *advice.get("notes", [])]
    yield from (f"{capital(text)}." for text in texts if text)
    for name, entries in nested.items():
        keys = list(dict.fromkeys(k for entry in entries.values() for k in entry))
        columns = [Column(capital(name.rstrip("s")), number=False), *map(Column, keys)]
        rows = [
            [key, *(one_line(entry[k]) if k in entry else None for k in keys)]
            for key, entry in entries.items()
        ]
        yield Table("", columns, rows)


def _is_table(value: Any) -> bool:
    rows = value.values() if isinstance(value, Mapping) else ()
    return bool(rows) and all(isinstance(row, Mapping) for row in rows)


def _search(search: Optional[Mapping[str, Any]]) -> str:
    """The outcome of a search on one line, e.g. `grid search, 5 points, validation AUROC 91 %`."""
    if not search:
        return "not searched"
    texts = [text.format(form(search[k])) for k, text, form in _SEARCH if is_number(search.get(k))]
    return ", ".join([f"{search.get('strategy', '')} search".strip(), *texts])


def _guard(search: Mapping[str, Any]) -> str:
    """What the overfitting guard measured; empty if it did not."""
    auroc: Any = search.get("guard")
    limit: Any = search.get("guard_threshold")
    if not is_number(auroc):
        return ""
    text = f"overfitting guard: AUROC of held-out training against validation data {percent(auroc)}"
    if not is_number(limit):
        return text
    side = "within" if abs(auroc - 0.5) <= limit else "outside"
    return f"{text}, {side} 50 \u00b1 {100 * limit:g} %"
