"""Reports on analyses: CSV, JSON and figures of each finding, and one page for all of them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Sequence

from nac_openood import files
from nac_openood.analysis import KINDS
from nac_openood.analysis.finding import About, Finding
from nac_openood.errors import FileError
from nac_openood.report import render
from nac_openood.report.figures import svg_file
from nac_openood.report.formatting import capital, count, set_title, settings_text
from nac_openood.report.render import Content, Figures, Section

_ROLES = {"fit": "fitting subset", "id_val": "ID validation", "ood_val": "OOD validation",
          "held_out": "held-out training"}  # fmt: skip


def write_finding(found: Finding, folder: Path) -> list[Path]:
    """Write `<kind>.csv` and `<kind>.json`; neither needs matplotlib."""
    table = files.write_text(folder / f"{found.kind}.csv", render.csv_text(found.records))
    return [table, found.save(folder)]


def write_figures(found: Finding, folder: Path) -> list[Path]:
    """Write `<kind>.svg`, or `<kind>-<key>.svg` where there are several.

    Raises:
        NACError: if matplotlib is not installed.
    """
    several = len(found.figures) > 1
    names = {f"{found.kind}-{f.key}" if several else found.kind: f for f in found.figures}
    return [files.write_text(folder / f"{n}.svg", svg_file(f)) for n, f in names.items()]


def write_analysis_page(folder: Path) -> Path:
    """Write `report.html` with all findings about one network and its data.

    Findings about another network or other data than the newest one's are left out.

    Raises:
        NACError: if matplotlib is not installed.
    """
    found: dict[Path, Any] = {}
    for path in (folder / f"{kind}.json" for kind in KINDS):
        with suppress(FileError):  # missing or damaged: the kind can be run again
            found[path] = Finding.load(path)
    if not found:
        raise FileError(f"{folder} holds no findings of an analysis.")
    newest = found[max(found, key=lambda path: path.stat().st_mtime_ns)].about
    same = [f for f in found.values() if replace(f.about, command=newest.command) == newest]
    return render.write_html(folder, analysis_document(same, newest))


def finding_text(found: Finding) -> str:
    """The sentence and the first table as text for a terminal of 100 columns."""
    return render.terminal_text(f"{found.title}: {found.sentence}", *found.tables[:1])


def analysis_document(findings: Sequence[Finding], about: About) -> render.Document:
    """A section for each finding; figures are not drawn yet."""
    sections = []
    for f in findings:
        blocks: list[Content] = [f.sentence, Figures(f.figures), *f.tables, [*f.notes], *f.gallery]
        sections.append(Section(f.kind, f.title, blocks))
    plus = not any("n_bins" in own for own in about.settings.values())  # NAC+ has no such settings
    rule, what = ("NAC+", "is a study of NAC+") if plus else ("NAC", "repeats a study of the paper")
    surrogate = f"The OOD validation set is made of {about.ood_val['name']}."
    notes = [surrogate] if about.ood_val["surrogate"] else []
    notes += [] if plus or about.searched else ["NAC's settings were not searched."]
    several = f"Each section {what} on this network."
    facts = [
        count(len(findings), "analysis", "analyses"),
        f"{about.accuracy:.2f} % ID accuracy",
        count(sum(role in ("near", "far") for role in about.roles.values()), "OOD dataset"),
        count(sum(about.samples[name] for name in about.roles), "test sample"),
    ]
    samples = {_ROLES.get(n, set_title(n)): count(k, "sample") for n, k in about.samples.items()}
    layers = {n: {k: v for k, v in s.items() if k != "layout"} for n, s in about.settings.items()}
    settings = {name: settings_text(own) for name, own in layers.items()}
    versions = about.made_with["versions"]
    return render.Document(
        f"{capital(set_title(about.id_name))}: analyses of {rule}", about.arch,
        findings[0].sentence if len(findings) == 1 else several,
        sections, facts, notes, topic=f"Analysis of {rule}", command=about.command,
        about={"Data": samples, f"Settings of {rule}": settings, "Versions": versions},
    )  # fmt: skip
