"""The methods of a comparison, ranked: means over runs, ranks and times."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, nan
from statistics import fmean
from typing import Mapping, Optional, Sequence

from nac_openood.benchmark.methods.table import METHODS
from nac_openood.benchmark.run.results import FAR, NEAR, Results, Row, Value

#: The methods that this package implements; reports highlight them.
OURS = frozenset(name for name, method in METHODS.items() if method.rule is not None)
_Values = Mapping[tuple[str, str], Value]


@dataclass(frozen=True)
class RankedMethod:
    """A method over all runs.

    Args:
        method: OpenOOD's name.
        title: the paper's name.
        implementation: the library that implements it; several if runs differ.
        status: "ok" if any run succeeded, else "failed" or "absent".
        runs_ok: how many runs succeeded.
        runs: how many runs there are.
        values: (dataset or group, metric) -> mean and std over the runs that succeeded.
        ranks: dataset or group -> rank by AUROC, 1 is best; equal values share a rank.
        times: "setup_seconds", "ms_per_image" and "peak_mb" -> mean over runs, where known.
        disturbed: whether its times are uncertain in any run, because the machine was busy.
        error: why runs did not succeed, one line.
    """

    method: str
    title: str
    implementation: str
    status: str
    runs_ok: int
    runs: int
    values: _Values
    ranks: Mapping[str, int]
    times: Mapping[str, float]
    disturbed: bool
    error: Optional[str] = None

    @property
    def ours(self) -> bool:
        """Whether to highlight it."""
        return self.method in OURS

    def value(self, dataset: str, metric: str = "AUROC") -> Optional[Value]:
        """Mean and std, or None if it was not measured."""
        return self.values.get((dataset, metric))


def ranked_methods(results: Results) -> list[RankedMethod]:
    """All methods, best first: by near-OOD AUROC, or far-OOD AUROC if there is no near-OOD.

    Methods without a result come last, failed ones before absent ones.
    """
    rows = results.methods()
    values = {name: _values(results, name) for name in rows}
    found = [_ranked(own, values[name], values) for name, own in rows.items()]
    order = {"ok": 0, "failed": 1}

    def key(m: RankedMethod) -> tuple[float, ...]:
        aurocs = [m.value(group) for group in (NEAR, FAR)]
        return (order.get(m.status, 2), *(inf if v is None else -v.mean for v in aurocs))

    return sorted(found, key=key)


def measured_groups(results: Results) -> list[str]:
    """NEAR and FAR, unless no method was measured on them."""
    rows = [r for r in results.rows if r.status == "ok"]
    return [group for group in (NEAR, FAR) if any(group in r.metrics for r in rows)]


def ood_sets(results: Results) -> list[str]:
    """The OOD datasets in order, near-OOD first."""
    return [*results.names("near"), *results.names("far")]


def _values(results: Results, method: str) -> dict[tuple[str, str], Value]:
    """Means over the runs that succeeded; a metric that one of them lacks is not measured."""
    rows = [row for row in results.rows if row.method == method and row.status == "ok"]
    keys = dict.fromkeys((s, m) for r in rows for s, metrics in r.metrics.items() for m in metrics)
    found = {}
    for dataset, metric in keys:
        numbers = [r.metrics[dataset].get(metric, nan) for r in rows if dataset in r.metrics]
        if all(map(isfinite, numbers)):  # a mean over fewer runs would look like one over all
            found[dataset, metric] = Value.of(numbers)
    return found


def _ranked(rows: Sequence[Row], values: _Values, others: Mapping[str, _Values]) -> RankedMethod:
    worked = [r for r in rows if r.status == "ok"]
    errors = [f"{r.run}: {r.error or r.status}" for r in rows if r.status != "ok"]
    if len({r.error for r in rows}) == 1 and not worked:
        errors = [rows[0].error or rows[0].status]
    failed = "failed" if any(r.status == "failed" for r in rows) else "absent"
    ranks, times = {}, {}
    for (dataset, metric), value in values.items():
        if metric == "AUROC":
            aurocs = [own[dataset, metric] for own in others.values() if (dataset, metric) in own]
            ranks[dataset] = 1 + sum(other.mean > value.mean for other in aurocs)
    for name in ("setup_seconds", "ms_per_image", "peak_mb"):
        numbers = [n for n in (getattr(r, name) for r in worked) if n is not None and isfinite(n)]
        if numbers:
            times[name] = fmean(numbers)
    return RankedMethod(
        rows[0].method,
        rows[0].title,
        implementation=", ".join(dict.fromkeys(r.implementation for r in worked or rows)),
        status="ok" if worked else failed,
        runs_ok=len(worked),
        runs=len(rows),
        values=values,
        ranks=ranks,
        times=times,
        disturbed=any(r.disturbed for r in worked),
        error="; ".join(errors) or None,
    )
