"""`results.csv`: every number of every cell, for whoever computes further."""

from __future__ import annotations

import csv
import io
from math import isfinite
from typing import Any, Optional

from nac_openood.compare.results import FAR, NEAR, Results, Row
from nac_openood.report.order import METRICS

_TIMES = ("setup_seconds", "ms_per_image", "peak_mb")
COLUMNS = (
    "method", "title", "run", "dataset", "role", *METRICS, *_TIMES, "shared_pass",
    "implementation", "status", "error",
)  # fmt: skip


def csv_table(results: Results) -> str:
    """A line for each method, run and data set; one line for a method that gave no number."""
    roles = {s.name: s.role for s in results.sets}
    roles.update({NEAR: "mean of near", FAR: "mean of far"})
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(COLUMNS)
    for row in results.rows:
        for dataset in row.metrics or [""]:
            table.writerow(_line(row, dataset, roles.get(dataset, "")))
    return out.getvalue()


def _line(row: Row, dataset: str, role: str) -> list[Any]:
    metrics = row.metrics.get(dataset, {})
    return [
        row.method, row.title, row.run, dataset, role,
        *(_cell(metrics.get(m)) for m in METRICS),
        *(_cell(getattr(row, t)) for t in _TIMES),
        str(row.shared_pass).lower(), row.implementation, row.status, row.error or "",
    ]  # fmt: skip


def _cell(value: Optional[float]) -> str:
    """All digits; empty where there is no number."""
    return repr(float(value)) if value is not None and isfinite(value) else ""
