"""`results.csv`: every number with all its digits, for further computation."""

from __future__ import annotations

import csv
import io
from math import isfinite
from typing import Any, Optional

from nac_openood.benchmark.run.metrics import METRICS
from nac_openood.benchmark.run.results import FAR, NEAR, Results
from nac_openood.report.words import metric

_TIMES = ("setup_seconds", "ms_per_image", "peak_mb")
_TEXTS = ("implementation", "status", "error")


def csv_table(results: Results) -> str:
    """A line for each method, run and dataset; one line for a method without a result."""
    roles = {s.name: s.role for s in results.sets}
    roles.update({NEAR: "mean of near", FAR: "mean of far"})
    measured = (m for row in results.rows for values in row.metrics.values() for m in values)
    metrics = list(dict.fromkeys((*METRICS, *measured)))
    lines: list[list[Any]] = [
        ["method", "title", "run", "dataset", "role", *(str(metric(m)) for m in metrics),
         *_TIMES, "shared_pass", "disturbed", *_TEXTS]
    ]  # fmt: skip
    for row in results.rows:
        for dataset in row.metrics or [""]:
            values = row.metrics.get(dataset, {})
            numbers = [values.get(m) for m in metrics] + [getattr(row, t) for t in _TIMES]
            lines.append(
                [row.method, row.title, row.run, dataset, roles.get(dataset, ""),
                 *map(_number, numbers), str(row.shared_pass).lower(),
                 str(row.disturbed).lower(),
                 *(getattr(row, text) or "" for text in _TEXTS)]
            )  # fmt: skip
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


def _number(value: Optional[float]) -> str:
    """All digits, or nothing."""
    return repr(float(value)) if value is not None and isfinite(value) else ""
