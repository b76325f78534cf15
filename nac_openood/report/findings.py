"""Reports on analyses: CSV, JSON and figures of each finding, and one page for all of them."""

from __future__ import annotations

from itertools import groupby
from textwrap import wrap
from typing import Sequence

from nac_openood.analysis.finding import About, Finding
from nac_openood.report.blocks import Bullets, Content, Document, Pictures, Section, about_section
from nac_openood.report.figures import picture_of
from nac_openood.report.formatting import count, set_title, settings_text
from nac_openood.report.render import text_table

_ROLES = {
    "fit": "fitting subset",
    "id_val": "ID validation",
    "ood_val": "OOD validation",
    "held_out": "held-out training",
}


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
