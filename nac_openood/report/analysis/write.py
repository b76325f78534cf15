"""Files of an analysis: CSV, JSON and figures of each kind, and one page for all of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Iterator

from nac_openood import files
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.table import KINDS
from nac_openood.errors import FileError, NACError
from nac_openood.report.analysis.about import check_about
from nac_openood.report.analysis.document import analysis_document, table_block
from nac_openood.report.analysis.pictures import picture_of
from nac_openood.report.blocks import Line, Table
from nac_openood.report.csv_file import csv_text
from nac_openood.report.terminal import text_table
from nac_openood.seals import sealed

_WIDTH = 100


def write_finding(found: Finding, folder: Path) -> list[Path]:
    """Write `<kind>.csv` and `<kind>.json`; neither needs matplotlib."""
    text = json.dumps(sealed(found.to_dict()), indent=1, allow_nan=False) + "\n"
    return [
        files.write_text(folder / f"{found.kind}.csv", _csv(found)),
        files.write_text(folder / f"{found.kind}.json", text),
    ]


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

    findings = list(_findings(folder))
    version = findings[0].about["made_with"]["versions"]["nac_openood"]
    return files.write_text(folder / "report.html", render(analysis_document(findings), version))


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


def _findings(folder: Path) -> Iterator[Finding]:
    """The findings of one and the same data, in the order of the table of kinds."""
    paths = [folder / f"{kind}.json" for kind in KINDS]
    kept = {path: found for path in paths if (found := _read(path)) is not None}
    if not kept:
        raise FileError(f"{folder} holds no findings of an analysis.")
    newest = max(kept, key=lambda path: path.stat().st_mtime_ns)
    same = {k: v for k, v in kept[newest].about.items() if k != "command"}
    for found in kept.values():
        if {k: v for k, v in found.about.items() if k != "command"} == same:
            yield found


def _read(path: Path) -> Finding | None:
    try:
        found = Finding.from_dict(files.read_json(path))
        check_about(found)
        return found
    except (OSError, NACError):  # missing or damaged: the kind can be run again
        return None


def _csv(found: Finding) -> str:
    names = list(dict.fromkeys(name for record in found.records for name in record))
    return csv_text([names, *([record.get(name) for name in names] for record in found.records)])
