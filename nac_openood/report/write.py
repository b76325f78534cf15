"""Tables and page of a comparison, written beside `results.json`."""

from __future__ import annotations

from pathlib import Path

from nac_openood import files
from nac_openood.benchmark.run.results import Results
from nac_openood.report.csv_file import results_csv
from nac_openood.report.document import document
from nac_openood.report.markdown import render_markdown


def write_tables(results: Results) -> list[Path]:
    """Write `results.csv` and `results.md`; neither needs matplotlib."""
    return [
        files.write_text(results.folder / "results.csv", results_csv(results)),
        files.write_text(results.folder / "results.md", render_markdown(document(results))),
    ]


def write_page(results: Results) -> Path:
    """Write `report.html`.

    Raises:
        NACError: if matplotlib is not installed.
    """
    from nac_openood.report.page import render

    return files.write_text(results.folder / "report.html", render(document(results)))
