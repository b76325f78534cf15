"""The page of an analysis as data: a section for each finding."""

from __future__ import annotations

from itertools import groupby
from typing import Sequence

from nac_openood.analysis.finding import About, Finding
from nac_openood.benchmark.run.results import Value
from nac_openood.report.analysis.pictures import picture_of
from nac_openood.report.blocks import (
    Block,
    Bullets,
    Card,
    Cards,
    Cell,
    Column,
    Document,
    Headline,
    Line,
    Pictures,
    Section,
    Table,
)
from nac_openood.report.sections.about import about_section
from nac_openood.report.words import NOTHING, count, set_title, settings_text
from nac_openood.tables import Entry, Examples
from nac_openood.tables import Table as DataTable

_ROLES = {
    "fit": "fitting subset",
    "id_val": "ID validation",
    "ood_val": "OOD validation",
    "held_out": "held-out training",
}

_SEVERAL = (
    "Each section repeats tables or figures of the paper on this network and begins with what it "
    "found."
)


def analysis_document(findings: Sequence[Finding], about: About) -> Document:
    """Everything there is to show; pictures are not drawn yet."""
    sections = [*map(_section, findings), _about(about)]
    return Document(_headline(findings, about), sections, about.versions["nac_openood"])


def _headline(findings: Sequence[Finding], about: About) -> Headline:
    roles = about.roles
    facts = [
        count(len(findings), "analysis", "analyses"),
        f"{about.accuracy:.2f} % ID accuracy",
        count(sum(role in ("near", "far") for role in roles.values()), "OOD dataset"),
        count(sum(about.samples[name] for name in roles), "test sample"),
    ]
    notes = []
    if about.ood_val.surrogate:
        notes.append(f"The OOD validation set is made of {about.ood_val.name}.")
    if not about.searched:
        notes.append("NAC's settings were not searched.")
    return Headline(
        f"{set_title(about.id_name)}: analyses of NAC", about.arch,
        findings[0].sentence if len(findings) == 1 else _SEVERAL, facts, notes, [],
        topic="Analysis of NAC",
    )  # fmt: skip


def _section(found: Finding) -> Section:
    blocks: list[Block] = [found.sentence]
    for is_wide, figures in groupby(found.figures, lambda figure: figure.type == "densities"):
        layout = "full" if is_wide else "wide"
        blocks.append(Pictures(layout, [picture_of(figure) for figure in figures]))
    blocks += [table_block(table) for table in found.tables]
    if found.notes:
        blocks.append(Bullets(list(found.notes)))
    blocks += [_cards(group) for group in found.gallery]
    return Section(found.kind, found.title, blocks)


def _cards(group: Examples) -> Cards:
    """Samples with their pictures, and a bar for each share."""
    cards = []
    for sample in group.samples:
        bars = [(name, f"{share:.0f}", round(share, 1)) for name, share in sample.shares.items()]
        cards.append(Card(sample.image, set_title(sample.dataset), sample.name, "", bars))
    return Cards(group.title, cards)


def table_block(table: DataTable) -> Table:
    """A table of a finding as the page and the terminal show it."""
    columns = [
        Column(
            head.title,
            "name" if column == 0 else "number" if head.number else "text",
            head.group,
            better=head.better,
        )
        for column, head in enumerate(table.columns)
    ]
    lines = [
        Line([_cell(entry) for entry in row], ours=number in table.ours)
        for number, row in enumerate(table.rows)
    ]
    return Table(table.title, columns, lines)


def _cell(entry: Entry) -> Cell:
    if entry is None:
        return Cell(NOTHING)
    if isinstance(entry, str):
        return Cell(entry)
    if isinstance(entry, (int, float)):
        return Cell(f"{entry:.2f}", value=float(entry))
    mean, std = entry
    return Cell() if mean is None else Cell.of_mean(Value(float(mean), std))


def _about(about: About) -> Section:
    samples = [
        (_ROLES.get(name, set_title(name)), count(n, "sample")) for name, n in about.samples.items()
    ]
    used = [
        (layer, settings_text({k: v for k, v in given.items() if k != "layout"}))
        for layer, given in about.settings.items()
    ]
    versions = list(about.versions.items())
    facts = {"Data": samples, "Settings of NAC": used, "Versions": versions}
    return about_section("analysis", about.command, facts)
