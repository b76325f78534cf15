"""Reports on analyses: CSV, JSON and figures of each finding, and one page for all of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import Optional, Sequence

from nac_openood import files
from nac_openood.analysis import KINDS
from nac_openood.analysis.finding import About, Finding
from nac_openood.errors import FileError
from nac_openood.report.blocks import Bullets, Content, Document, Pictures, Section, about_section
from nac_openood.report.drawing import svg_file
from nac_openood.report.figures import picture_of
from nac_openood.report.formatting import count, set_title, settings_text
from nac_openood.report.render import csv_text, render_page, text_table

_ROLES = {
    "fit": "fitting subset",
    "id_val": "ID validation",
    "ood_val": "OOD validation",
    "held_out": "held-out training",
}


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
    """Write `report.html` with all findings about one network and its data.

    Findings about other networks or data than the newest one are left out.

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


def finding_text(found: Finding) -> str:
    """The sentence and the first table as text for a terminal of 100 columns."""
    tables = [line for table in found.tables[:1] for line in ("", *text_table(table))]
    return "\n".join([*wrap(f"{found.title}: {found.sentence}", 100), *tables])


def analysis_document(findings: Sequence[Finding], about: About) -> Document:
    """A section for each finding; figures are not drawn yet."""
    facts = [
        count(len(findings), "analysis", "analyses"),
        f"{about.accuracy:.2f} % ID accuracy",
        count(sum(role in ("near", "far") for role in about.roles.values()), "OOD dataset"),
        count(sum(about.samples[name] for name in about.roles), "test sample"),
    ]
    notes = []
    if about.ood_val.surrogate:
        notes.append(f"The OOD validation set is made of {about.ood_val.name}.")
    if not about.searched:
        notes.append("NAC's settings were not searched.")
    several = (
        "Each section repeats tables or figures of the paper on this network and begins with what "
        "it found."
    )
    return Document(
        f"{set_title(about.id_name)}: analyses of NAC",
        about.arch,
        findings[0].sentence if len(findings) == 1 else several,
        [*map(_section, findings), _about(about)],
        facts,
        notes,
        topic="Analysis of NAC",
        version=about.versions["nac_openood"],
    )


def _section(found: Finding) -> Section:
    blocks: list[Content] = [found.sentence]
    for is_wide, figures in groupby(found.figures, lambda figure: figure.type == "densities"):
        layout = "full" if is_wide else "wide"
        blocks.append(Pictures(layout, [picture_of(figure) for figure in figures]))
    blocks += [*found.tables, Bullets(found.notes), *found.gallery]
    return Section(found.kind, found.title, blocks)


def _about(about: About) -> Section:
    samples = [
        (_ROLES.get(name, set_title(name)), count(n, "sample")) for name, n in about.samples.items()
    ]
    settings = [
        (layer, settings_text({k: v for k, v in own.items() if k != "layout"}))
        for layer, own in about.settings.items()
    ]
    versions = list(about.versions.items())
    facts = {"Data": samples, "Settings of NAC": settings, "Versions": versions}
    return about_section("analysis", about.command, facts)
