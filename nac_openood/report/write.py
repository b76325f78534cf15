"""Write the files of reports: on comparisons, on rankings of checkpoints and on analyses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Optional

from nac_openood import files
from nac_openood.analysis import KINDS
from nac_openood.analysis.finding import Finding
from nac_openood.benchmark.run.results import Results
from nac_openood.errors import FileError
from nac_openood.evaluation.leave_one_out import RankedRuns
from nac_openood.report.blocks import Document
from nac_openood.report.checkpoints import ranked_csv, ranked_document
from nac_openood.report.comparison import comparison_document, results_csv
from nac_openood.report.drawing import svg_file
from nac_openood.report.figures import picture_of
from nac_openood.report.findings import analysis_document
from nac_openood.report.render import csv_text, render_markdown, render_page


def write_tables(results: Results) -> list[Path]:
    """Write `results.csv` and `results.md`; neither needs matplotlib."""
    return _write_tables(results.folder, results_csv(results), comparison_document(results))


def _write_tables(folder: Path, csv: str, document: Document) -> list[Path]:
    markdown = files.write_text(folder / "results.md", render_markdown(document))
    return [files.write_text(folder / "results.csv", csv), markdown]


def write_page(results: Results) -> Path:
    """Write `report.html`.

    Raises:
        NACError: if matplotlib is not installed.
    """
    page = render_page(comparison_document(results))
    return files.write_text(results.folder / "report.html", page)


def write_ranked_tables(ranked: RankedRuns, folder: Path) -> list[Path]:
    """Write `results.csv` and `results.md`; neither needs matplotlib."""
    return _write_tables(folder, ranked_csv(ranked), ranked_document(ranked))


def write_ranked_page(ranked: RankedRuns, folder: Path) -> Path:
    """Write `report.html`.

    Raises:
        NACError: if matplotlib is not installed.
    """
    return files.write_text(folder / "report.html", render_page(ranked_document(ranked)))


def write_finding(found: Finding, folder: Path) -> list[Path]:
    """Write `<kind>.csv` and `<kind>.json`; neither needs matplotlib."""
    names = list(dict.fromkeys(name for record in found.records for name in record))
    lines = [[record.get(name) for name in names] for record in found.records]
    return [
        files.write_text(folder / f"{found.kind}.csv", csv_text([names, *lines])),
        found.save(folder),
    ]


def write_figures(found: Finding, folder: Path) -> list[Path]:
    """Write `<kind>.svg`, or `<kind>-<key>.svg` where there are several.

    Raises:
        NACError: if matplotlib is not installed.
    """
    several = len(found.figures) > 1
    return [
        files.write_text(
            folder / (f"{found.kind}-{figure.key}.svg" if several else f"{found.kind}.svg"),
            svg_file(picture_of(figure)),
        )
        for figure in found.figures
    ]


def write_analysis_page(folder: Path) -> Path:
    """Write `report.html` with everything that was found about one network and its data.

    Findings in the folder that are about something else than the newest one are left out.

    Raises:
        NACError: if matplotlib is not installed.
    """
    read = {path: _read(path) for path in (folder / f"{kind}.json" for kind in KINDS)}
    found = {path: (f.about, f) for path, f in read.items() if f is not None and f.about}
    if not found:
        raise FileError(f"{folder} holds no findings of an analysis.")
    newest, _ = found[max(found, key=lambda path: path.stat().st_mtime_ns)]
    pairs = found.values()
    same = [(a, f) for a, f in pairs if replace(a, command=newest.command) == newest]
    page = render_page(analysis_document([found for _, found in same], same[0][0]))
    return files.write_text(folder / "report.html", page)


def _read(path: Path) -> Optional[Finding]:
    try:
        return Finding.load(path)
    except FileError:  # missing or damaged: the kind can be run again
        return None
