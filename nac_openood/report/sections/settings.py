"""The hyperparameters in use and how they were found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from nac_openood.benchmark.run.results import Results
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
    settings,
)

#: What a search tells: its key, the text and how to write the number.
_TOLD: Sequence[tuple[str, str, Callable[[Any], str]]] = (
    ("points", "{}", lambda n: count(n, "point")),
    ("seconds", "{} s", quantity),
    ("auroc", "validation AUROC {}", percent),
    ("fpr95", f"validation {metric('FPR@95')} {{}}", percent),
    ("fpr95_in", f"validation {metric('FPR@95_IN')} {{}}", percent),
)


@dataclass(frozen=True)
class _Chosen:
    """A method's hyperparameters in the runs that share them.

    `search` and `advice` are those of the first run.
    """

    method: str
    title: str
    runs: str
    hyperparameters: Mapping[str, Any]
    search: Mapping[str, Any]
    advice: Mapping[str, Any]


def hyperparameters(results: Results, order: Sequence[Standing]) -> Optional[Section]:
    """Our methods layer by layer, then a row for each other method."""
    found = _chosen(results)
    standing = {s.method: (i, s.ours) for i, s in enumerate(order)}
    found.sort(key=lambda c: standing[c.method])
    ours = [c for c in found if standing[c.method][1]]
    blocks: list[Block] = [block for c in ours for block in _ours(c)]
    others = [c for c in found if c not in ours]
    if others:
        titles = (("Method", "name"), ("Runs", "text"), ("In use", "code"), ("Search", "text"))
        columns = [Column(title, kind) for title, kind in titles]
        rows = [(c.title, c.runs, settings(c.hyperparameters), _search(c.search)) for c in others]
        blocks.append(Table("Other methods", columns, [Line(list(map(Cell, row))) for row in rows]))
    with_some = {c.method for c in found}
    without = [s.title for s in order if s.status == "ok" and s.method not in with_some]
    if without:
        blocks.append(f"Methods without hyperparameters: {', '.join(without)}.")
    return Section("settings", "Hyperparameters", blocks) if blocks else None


def _chosen(results: Results) -> list[_Chosen]:
    """The hyperparameters of all methods that have some; runs that agree are listed together."""
    found: dict[str, _Chosen] = {}
    for row in results.rows:
        search = dict(row.search or {})
        if row.status != "ok" or not (row.hyperparameters or search):
            continue
        told = {k: v for k, v in search.items() if k != "seconds"}  # runs may agree but for time
        key = one_line([row.method, dict(row.hyperparameters), told])
        if key in found:
            found[key] = replace(found[key], runs=f"{found[key].runs}, {row.run}")
        else:
            found[key] = _Chosen(
                row.method, row.title, row.run, row.hyperparameters, search, row.advice or {}
            )
    return list(found.values())


def _ours(c: _Chosen) -> Iterator[Block]:
    """Nested settings become tables, the others a line."""
    nested = {k: v for k, v in c.hyperparameters.items() if _is_table(v)}
    flat = {k: v for k, v in c.hyperparameters.items() if k not in nested}
    yield Heading(f"{c.title}, {c.runs}")
    told = [_search(c.search), _guard(c.search), f"settings: {settings(flat)}" if flat else ""]
    told += [_compared(c.advice), *c.advice.get("warnings", []), *c.advice.get("notes", [])]
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


def _search(search: Mapping[str, Any]) -> str:
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
