"""The methods of a comparison: means over runs, ranks, times and hyperparameters."""

from __future__ import annotations

from itertools import product
from math import inf, isfinite
from statistics import fmean
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from nac_openood.benchmark.methods.table import METHODS
from nac_openood.benchmark.run.results import FAR, METRICS, NEAR, Results, Row, Value
from nac_openood.report import formatting as fmt
from nac_openood.report.render import Content, Section
from nac_openood.tables import Cell, Column, Entry, Table, text_columns

#: The methods that this package implements; reports highlight them.
OURS = frozenset(name for name, method in METHODS.items() if method.rule is not None)
#: The numbers of a search as text.
_SEARCH: Mapping[str, Callable[[Any], str]] = {
    "points": lambda n: fmt.count(n, "point"),
    "left_out": lambda n: f"{fmt.count(n, 'point')} left out that this data does not allow",
    "seconds": lambda seconds: f"{fmt.quantity(seconds)} s",
    "auroc": lambda auroc: f"validation AUROC {fmt.percent(auroc)}",
    "fpr95": lambda fpr: f"validation {fmt.SHOWN['FPR@95']} {fmt.percent(fpr)}",
    "fpr95_in": lambda fpr: f"validation {fmt.SHOWN['FPR@95_IN']} {fmt.percent(fpr)}",
}


class RankedMethod:
    """A method over all runs.

    Attributes:
        method: OpenOOD's name.
        title: the paper's name.
        ours: whether to highlight it.
        rows: its results, one for each run.
        worked: the rows of runs that succeeded.
        implementation: the library that implements it; several if runs differ.
        status: "ok" if any run succeeded, else "failed" or "absent".
        error: why runs did not succeed, one line.
        disturbed: whether its times are uncertain in any run, because the machine was busy.
        times: "setup_seconds", "ms_per_image" and "peak_mb" -> mean over runs, where known.
        ms: milliseconds per image, 0 where unknown.
        values: (dataset or group, metric) -> mean and std over the runs that succeeded.
        ranks: dataset or group -> rank by AUROC, 1 is best; equal values share a rank.
    """

    def __init__(self, results: Results, rows: Sequence[Row]) -> None:
        self.method, self.title, self.rows = rows[0].method, rows[0].title, rows
        self.ours = self.method in OURS
        self.worked = [r for r in rows if r.status == "ok"]
        libraries = dict.fromkeys(r.implementation for r in self.worked or rows)
        self.implementation = ", ".join(libraries)
        failed = "failed" if any(r.status == "failed" for r in rows) else "absent"
        self.status = "ok" if self.worked else failed
        errors = [f"{r.run}: {r.error or r.status}" for r in rows if r.status != "ok"]
        if len({r.error for r in rows}) == 1 and not self.worked:
            errors = [rows[0].error or rows[0].status]
        self.error = "; ".join(errors)
        self.disturbed = any(r.disturbed for r in self.worked)
        self.times = {}
        for name in ("setup_seconds", "ms_per_image", "peak_mb"):
            measured = (getattr(r, name) for r in self.worked)
            if numbers := [n for n in measured if n is not None and isfinite(n)]:
                self.times[name] = fmean(numbers)
        self.ms = self.times.get("ms_per_image", 0.0)
        sets = dict.fromkeys(name for row in self.worked for name in row.metrics)
        found = {at: results.value(self.method, *at) for at in product(sets, METRICS)}
        self.values = {at: value for at, value in found.items() if value is not None}
        self.ranks: dict[str, int] = {}

    def value(self, dataset: str, metric: str = "AUROC") -> Optional[Value]:
        """Mean and std, or None if it was not measured."""
        return self.values.get((dataset, metric))

    def auroc(self, dataset: str) -> float:
        """The mean AUROC, or minus infinity if it was not measured."""
        value = self.value(dataset)
        return -inf if value is None else value.mean


class Ranked:
    """The results of a comparison with its methods, best first.

    Methods are ordered by near-OOD AUROC, or far-OOD AUROC if there is no near-OOD. Those without a
    result come last, failed ones before absent ones.

    Attributes:
        results: the comparison.
        methods: all methods.
        worked: those with a result.
        groups: NEAR and FAR, unless no method was measured on them.
        ood_sets: the OOD datasets in order, near-OOD first.
        metrics: how the metrics of which any method has values are shown.
    """

    def __init__(self, results: Results) -> None:
        self.results = results
        found = [RankedMethod(results, rows) for rows in results.methods().values()]
        for m in found:
            for dataset in (d for d, metric in m.values if metric == "AUROC"):
                m.ranks[dataset] = 1 + sum(o.auroc(dataset) > m.auroc(dataset) for o in found)
        order = {"ok": 0, "failed": 1, "absent": 2}
        self.methods = sorted(found, key=lambda m: (order[m.status], -m.auroc(NEAR), -m.auroc(FAR)))
        self.worked = [m for m in self.methods if m.status == "ok"]
        sets, metrics = ({key[part] for m in found for key in m.values} for part in (0, 1))
        self.groups = [group for group in (NEAR, FAR) if group in sets]
        self.ood_sets = [*results.names("near"), *results.names("far")]
        self.metrics = {key: shown for key, shown in fmt.SHOWN.items() if key in metrics}


def hyperparameters(ranked: Ranked) -> Section:
    """Our methods layer by layer, then a row for each other method."""
    blocks: list[Content] = []
    others: list[list[Entry]] = []
    without = []
    for m in ranked.worked:
        same: dict[str, list[Row]] = {}  # runs with the same settings
        for row in (r for r in m.worked if r.hyperparameters or r.search):
            search = {**(row.search or {}), "seconds": None}  # runs may differ in time only
            same.setdefault(fmt.one_line([dict(row.hyperparameters), search]), []).append(row)
        for row, *more in same.values():
            runs = ", ".join(r.run for r in (row, *more))
            if m.ours:
                blocks.append(Section("", f"{row.title}, {runs}", list(_ours(row))))
            else:
                settings = Cell(fmt.settings_text(row.hyperparameters), code=True)
                others.append([row.title, runs, settings, _search(row.search)])
        without += [] if same else [m.title]
    if others:
        columns = text_columns("Method", "Runs", "In use", "Search")
        blocks.append(Table("Other methods", columns, others))
    if without:
        blocks.append(f"Methods without hyperparameters: {', '.join(without)}.")
    return Section("settings", "Hyperparameters", blocks)


def _ours(row: Row) -> Iterator[Content]:
    """The settings of layers are a table, the others a line."""
    settings, advice = dict(row.hyperparameters), row.advice or {}
    layers = settings.pop("layers", {})
    texts = [_search(row.search)]
    texts += [f"settings: {fmt.settings_text(settings)}"] if settings else []
    aurocs = [f"{name} {fmt.percent(value)}" for name, value in (advice.get("auroc") or {}).items()]
    texts += [f"AUROC on {advice['against']}: {', '.join(aurocs)}"] if aurocs else []
    texts += [*advice.get("warnings", []), *advice.get("notes", [])]
    yield from (f"{fmt.capital(text)}." for text in texts)
    if layers:
        keys = list(dict.fromkeys(key for own in layers.values() for key in own))
        rows = [
            [name, *(fmt.one_line(own[k]) if k in own else None for k in keys)]
            for name, own in layers.items()
        ]
        yield Table("", [*text_columns("Layer"), *map(Column, keys)], rows)


def _search(search: Optional[Mapping[str, Any]]) -> str:
    """The outcome of a search on one line, e.g. `grid search, 5 points, validation AUROC 91 %`."""
    if not search:
        return "not searched"
    texts = [f"{search.get('strategy', '')} search".strip()]
    texts += [show(search[key]) for key, show in _SEARCH.items() if search.get(key) is not None]
    auroc, limit = search.get("guard"), search.get("guard_threshold")
    if auroc is not None and limit is not None:
        side = "within" if abs(auroc - 0.5) <= limit else "outside"
        texts.append(
            "overfitting guard: AUROC of held-out training against validation data "
            f"{fmt.percent(auroc)}, {side} 50 \u00b1 {100 * limit:g} %"
        )
    return ", ".join(texts)
