"""CSV files: every number with all its digits, for further computation."""

from __future__ import annotations

import csv
import io
from math import isfinite
from typing import Any, Iterable, Sequence

from nac_openood.benchmark.run.results import Results
from nac_openood.report.words import metric


def results_csv(results: Results) -> str:
    """`Results.table`: a line for each method, run and dataset."""
    table = results.table()
    heads = [[str(metric(name)) for name in table[0]]] if table else []
    return csv_text([*heads, *(list(line.values()) for line in table)])


def csv_text(lines: Iterable[Sequence[Any]]) -> str:
    """Lines of texts and numbers as CSV, for `None`, NaN and infinity an empty cell."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(
        [_entry(value) for value in line] for line in lines
    )
    return out.getvalue()


def _entry(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return None if isinstance(value, float) and not isfinite(value) else value
