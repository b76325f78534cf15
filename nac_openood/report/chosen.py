"""Which hyperparameters were in use, said once where runs agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from nac_openood.compare.results import Results
from nac_openood.report.words import percent, plain, quantity


@dataclass(frozen=True)
class Chosen:
    """A method's hyperparameters in the runs that share them; `search` is that of the first."""

    method: str
    title: str
    runs: tuple[str, ...]
    hyperparameters: Mapping[str, Any]
    search: Mapping[str, Any]

    @property
    def runs_text(self) -> str:
        """The runs' names on one line."""
        return ", ".join(self.runs)


def chosen(results: Results) -> list[Chosen]:
    """The hyperparameters of all methods that have some, in the order asked for."""
    found: dict[str, Chosen] = {}
    for row in results.rows:
        search = dict(row.search or {})
        if row.status != "ok" or not (row.hyperparameters or search):
            continue
        told = {k: v for k, v in search.items() if k != "seconds"}  # time is no choice
        key = plain([row.method, dict(row.hyperparameters), told])
        runs = (*found[key].runs, row.run) if key in found else (row.run,)
        first = found[key].search if key in found else search
        found[key] = Chosen(row.method, row.title, runs, row.hyperparameters, first)
    return list(found.values())


def nothing_to_choose(results: Results) -> list[str]:
    """Titles of the methods that worked and have no hyperparameters."""
    with_some = {c.method for c in chosen(results)}
    rows = [r for r in results.rows if r.status == "ok" and r.method not in with_some]
    return list(dict.fromkeys(r.title for r in rows))


def search_words(search: Mapping[str, Any]) -> str:
    """What a search told, on one line; keys it does not have are left out."""
    if not search:
        return "not searched"
    parts = []
    if "auroc" in search:
        parts.append(f"validation AUROC {percent(search['auroc'])}")
    if "fpr95" in search:
        parts.append(f"FPR@95 {percent(search['fpr95'])}")
    how = [f"{search[k]}" for k in ("strategy",) if k in search]
    how += [f"{quantity(search[k])} {k}" for k in ("points",) if _is_number(search.get(k))]
    how += [f"{quantity(search[k])} s" for k in ("seconds",) if _is_number(search.get(k))]
    if how:
        parts.append(f"search: {', '.join(how)}")
    return "; ".join(parts) or "searched"


def guard_words(search: Mapping[str, Any]) -> str:
    """What the overfitting guard saw, or an empty text where there was none."""
    seen, limit = search.get("guard"), search.get("guard_threshold")
    if not _is_number(seen):
        return ""
    text = f"overfitting guard: held-out training against validation images AUROC {percent(seen)}"
    if not _is_number(limit):
        return text
    held = "within" if abs(seen - 0.5) <= limit else "outside"  # type: ignore[operator]
    return f"{text}, {held} 50 ± {100 * limit:g} %"  # type: ignore[operator]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
