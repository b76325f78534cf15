"""`results.csv`: every number with all its digits, for further computation."""

from __future__ import annotations

import csv
import io
from math import isfinite
from typing import Any

from nac_openood.benchmark.run.results import Results
from nac_openood.report.words import metric


def csv_table(results: Results) -> str:
    """`Results.table`: a line for each method, run and dataset."""
    table = results.table()
    lines = [[str(metric(name)) for name in table[0]]] if table else []
    lines += [[cell_text(value) for value in line.values()] for line in table]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


def cell_text(value: Any) -> str:
    """A number with all digits; nothing for None, NaN and infinity."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(float(value)) if isfinite(value) else ""
