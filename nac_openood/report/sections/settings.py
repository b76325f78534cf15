"""The hyperparameters in use and how they were found."""

from __future__ import annotations

from itertools import starmap
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from nac_openood.benchmark.run.results import Results, Row
from nac_openood.report.blocks import Block, Cell, Column, Heading, Line, Section, Table
from nac_openood.report.order import Standing
from nac_openood.report.words import (
    capital,
    count,
    is_number,
    metric,
    one_line,
    percent,
    quantity,
    settings_text,
)

#: What a search tells: its key, the text and how to write the number.
_TOLD: Sequence[tuple[str, str, Callable[[Any], str]]] = (
    ("points", "{}", lambda n: count(n, "point")),
    ("left_out", "{} left out that this data does not allow", lambda n: count(n, "point")),
    ("seconds", "{} s", quantity),
    ("auroc", "validation AUROC {}", percent),
    ("fpr95", f"validation {metric('FPR@95')} {{}}", percent),
    ("fpr95_in", f"validation {metric('FPR@95_IN')} {{}}", percent),
)


def hyperparameters(results: Results, order: Sequence[Standing]) -> Optional[Section]:
    """Our methods layer by layer, then a row for each other method."""
    chosen = _chosen(results)
    blocks: list[Block] = []
    others = []
    for s in order:
        for row, runs in chosen:
            if row.method == s.method and s.ours:
                blocks += _ours(row, runs)
            elif row.method == s.method:
                texts = (row.title, runs, settings_text(row.hyperparameters), _search(row.search))
                others.append(Line(list(map(Cell, texts))))
    if others:
        titles = (("Method", "name"), ("Runs", "text"), ("In use", "code"), ("Search", "text"))
        blocks.append(Table("Other methods", list(starmap(Column, titles)), others))
    with_some = {row.method for row, _ in chosen}
    without = [s.title for s in order if s.status == "ok" and s.method not in with_some]
    if without:
        blocks.append(f"Methods without hyperparameters: {', '.join(without)}.")
    return Section("settings", "Hyperparameters", blocks) if blocks else None


def _chosen(results: Results) -> list[tuple[Row, str]]:
    """Rows of methods that have hyperparameters, and the runs that share those of the row."""
    found: dict[str, list[Row]] = {}
    for row in results.rows:
        if row.status == "ok" and (row.hyperparameters or row.search):
            search = {**(row.search or {}), "seconds": None}  # runs may agree but for time
            key = one_line([row.method, dict(row.hyperparameters), search])
            found.setdefault(key, []).append(row)
    return [(rows[0], ", ".join(row.run for row in rows)) for rows in found.values()]


def _ours(row: Row, runs: str) -> Iterator[Block]:
    """Nested settings become tables, the others a line."""
    nested = {k: v for k, v in row.hyperparameters.items() if _is_table(v)}
    flat = {k: v for k, v in row.hyperparameters.items() if k not in nested}
    yield Heading(f"{row.title}, {runs}")
    search, advice = row.search or {}, row.advice or {}
    told = [_search(search), _guard(search), f"settings: {settings_text(flat)}" if flat else ""]
    told += [_compared(advice), *advice.get("warnings", []), *advice.get("notes", [])]
    yield from (f"{capital(text)}." for text in told if text)
    for name, entries in nested.items():
        keys = list(dict.fromkeys(k for entry in entries.values() for k in entry))
        columns = [Column(capital(name.rstrip("s")), "name"), *map(Column, keys)]
        lines = [
            Line([Cell(key), *(Cell(one_line(entry[k])) if k in entry else Cell() for k in keys)])
            for key, entry in entries.items()
        ]
        yield Table("", columns, lines)


def _is_table(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(v, Mapping) for v in value.values())
    )


def _search(search: Optional[Mapping[str, Any]]) -> str:
    """The outcome of a search on one line, e.g. `grid search, 5 points, validation AUROC 91 %`."""
    if not search:
        return "not searched"
    known = [text.format(form(search[k])) for k, text, form in _TOLD if is_number(search.get(k))]
    return ", ".join([f"{search.get('strategy', '')} search".strip(), *known])


def _guard(search: Mapping[str, Any]) -> str:
    """What the overfitting guard measured; empty if it did not."""
    seen: Any = search.get("guard")
    limit: Any = search.get("guard_threshold")
    if not is_number(seen):
        return ""
    text = f"overfitting guard: AUROC of held-out training against validation data {percent(seen)}"
    if not is_number(limit):
        return text
    held = "within" if abs(seen - 0.5) <= limit else "outside"
    return f"{text}, {held} 50 \u00b1 {100 * limit:g} %"


def _compared(advice: Mapping[str, Any]) -> str:
    """What simpler methods reach on validation data; empty if they were not compared."""
    found = advice.get("auroc") or {}
    numbers = ", ".join(f"{title} {percent(value)}" for title, value in found.items())
    return f"AUROC on {advice['against']}: {numbers}" if numbers else ""
