"""Write the files of a comparison: `results.csv`, `results.md` and `report.html`."""

from __future__ import annotations

from pathlib import Path

from nac_openood import files
from nac_openood.benchmark.run.results import Results
from nac_openood.report.comparison import comparison_document, results_csv
from nac_openood.report.render import render_page, write_results


def write_tables(results: Results) -> list[Path]:
    """Write `results.csv` and `results.md`; neither needs matplotlib."""
    return write_results(results.folder, results_csv(results), comparison_document(results))


def write_page(results: Results) -> Path:
    """Write `report.html`.

    Raises:
        NACError: if matplotlib is not installed.
    """
    page = render_page(comparison_document(results))
    return files.write_text(results.folder / "report.html", page)
