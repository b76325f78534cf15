"""Everything a comparison has to show, as files beside `results.json`."""

from __future__ import annotations

from pathlib import Path

from nac_openood.compare.results import Results
from nac_openood.core import files
from nac_openood.report.markdown import markdown
from nac_openood.report.page import page
from nac_openood.report.tables import csv_table

CSV, MARKDOWN, PAGE = "results.csv", "results.md", "report.html"


def write_tables(results: Results) -> list[Path]:
    """Write `results.csv` and `results.md`, which need no matplotlib."""
    written = []
    for name, text in ((CSV, csv_table(results)), (MARKDOWN, markdown(results))):
        files.write_text(results.folder / name, text)
        written.append(results.folder / name)
    return written


def write_page(results: Results) -> Path:
    """Write `report.html`.

    Raises:
        NACError: where matplotlib is not installed.
    """
    files.write_text(results.folder / PAGE, page(results))
    return results.folder / PAGE


def write_report(results: Results) -> list[Path]:
    """Write `results.csv`, `results.md` and `report.html` into the results' folder.

    Raises:
        NACError: where matplotlib is not installed; the tables are written by then.
    """
    return [*write_tables(results), write_page(results)]
