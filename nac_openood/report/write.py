"""Tables and page of a comparison, written beside `results.json`."""

from __future__ import annotations

from pathlib import Path

from nac_openood import files
from nac_openood.benchmark.run.results import Results
from nac_openood.report.csv_file import csv_table
from nac_openood.report.markdown import markdown


def write_tables(results: Results) -> list[Path]:
    """Write `results.csv` and `results.md`; neither needs matplotlib."""
    return [
        _write(results, "results.csv", csv_table(results)),
        _write(results, "results.md", markdown(results)),
    ]


def write_page(results: Results) -> Path:
    """Write `report.html`.

    Raises:
        NACError: if matplotlib is not installed.
    """
    from nac_openood.report.page import page

    return _write(results, "report.html", page(results))


def _write(results: Results, name: str, text: str) -> Path:
    files.write_text(results.folder / name, text)
    return results.folder / name
