"""Files of an analysis: CSV, JSON and figures of each kind, and one page for all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from textwrap import wrap

from nac_openood import files
from nac_openood.analysis.finding import About, Finding
from nac_openood.analysis.table import KINDS
from nac_openood.errors import FileError
from nac_openood.report.analysis.document import analysis_document, table_block
from nac_openood.report.analysis.pictures import picture_of
from nac_openood.report.blocks import Line, Table
from nac_openood.report.csv_file import csv_text
from nac_openood.report.terminal import text_table

_WIDTH = 100


def write_finding(found: Finding, folder: Path) -> list[Path]:
    """Write `<kind>.csv` and `<kind>.json`; neither needs matplotlib."""
    return [files.write_text(folder / f"{found.kind}.csv", _csv(found)), found.save(folder)]


def write_figures(found: Finding, folder: Path) -> list[Path]:
    """Write `<kind>.svg`, or `<kind>-<key>.svg` where there are several.

    Raises:
        NACError: if matplotlib is not installed.
    """
    from nac_openood.report.figures.canvas import svg_file

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
    from nac_openood.report.page import render

    about, findings = _findings(folder)
    return files.write_text(folder / "report.html", render(analysis_document(findings, about)))


def finding_text(found: Finding) -> str:
    """The sentence and the first table as plain text for a terminal of 100 columns."""
    tables = [line for t in found.tables[:1] for line in ("", *_fitted(table_block(t)))]
    return "\n".join([*wrap(f"{found.title}: {found.sentence}", _WIDTH), *tables])


def _fitted(table: Table) -> list[str]:
    """The table as text, without the last columns where there is no room for all of them."""
    for shown in range(len(table.columns), 1, -1):
        lines = [Line(line.cells[:shown], line.ours) for line in table.lines]
        text = text_table(replace(table, columns=table.columns[:shown], lines=lines))
        if max(map(len, text)) < _WIDTH:
            break
    return text


def _findings(folder: Path) -> tuple[About, list[Finding]]:
    """The findings about the data of the newest one, in the order of the table of kinds."""
    read = {path: _read(path) for path in (folder / f"{kind}.json" for kind in KINDS)}
    kept = {path: (f.about, f) for path, f in read.items() if f is not None and f.about is not None}
    if not kept:
        raise FileError(f"{folder} holds no findings of an analysis.")
    newest, _ = kept[max(kept, key=lambda path: path.stat().st_mtime_ns)]
    same = [pair for pair in kept.values() if replace(pair[0], command=newest.command) == newest]
    return same[0][0], [found for _, found in same]


def _read(path: Path) -> Finding | None:
    try:
        return Finding.load(path)
    except FileError:  # missing or damaged: the kind can be run again
        return None


def _csv(found: Finding) -> str:
    names = list(dict.fromkeys(name for record in found.records for name in record))
    return csv_text([names, *([record.get(name) for name in names] for record in found.records)])
