"""The report on a ranking as data: what the page and Markdown render."""

from __future__ import annotations

from typing import Iterator, Optional

from nac_openood.evaluation.leave_one_out import AVERAGE, RankedRuns, Summary
from nac_openood.evaluation.ranking import CRITERIA
from nac_openood.report.blocks import Block, Document, Headline, Pictures, Section, Tile
from nac_openood.report.ranked.figures import steps_picture, volume_picture
from nac_openood.report.ranked.tables import (
    UNDEFINED,
    checkpoints_table,
    choice_table,
    settings_table,
    title_of,
)
from nac_openood.report.sections.about import about_section
from nac_openood.report.sections.paper import PaperRow, paper_section
from nac_openood.report.words import capital, count

_TIES = (
    "RC is Spearman's rank correlation with test accuracy over the checkpoints of a run, times "
    "100. Equal values share the mean of their ranks; the authors' code breaks such ties by "
    "position. ACC is the test accuracy in percent of the checkpoint that a criterion chooses. "
    "\u0394 is NAC-ME minus validation accuracy."
)
_ROLES = {"train": "training", "val": "validation", "test": "test", "oracle": "choice by oracle"}


def ranked_document(ranked: RankedRuns) -> Document:
    """Everything there is to show; pictures are not drawn yet."""
    sections = [
        _results(ranked),
        _paper(ranked),
        _over_steps(ranked),
        _volume(ranked),
        _settings(ranked),
        _checkpoints(ranked),
        _about(ranked),
    ]
    shown = [section for section in sections if section is not None]
    return Document(_headline(ranked), shown, ranked.versions.get("nac_openood", ""))


def ranking_verdict(ranked: RankedRuns) -> str:
    """What came out, in one or two sentences."""
    if not ranked.has_test:
        names = [run.ranking.chosen().name for run in ranked.runs]
        return f"NAC-ME chooses {', '.join(names)}, judged by training data alone."
    ours, theirs = (ranked.rc(criterion, _where(ranked)) for criterion in ("nac-me", "validation"))
    best, other = (ranked.accuracy(c, _where(ranked)) for c in ("nac-me", "validation"))
    sentences = []
    if ours.mean is None or theirs.mean is None:
        sentences.append("The rank correlation is undefined for some runs; see the notes.")
    else:
        sentences.append(
            f"Coverage has a rank correlation of {ours.mean:.1f} with test accuracy, validation "
            f"accuracy one of {theirs.mean:.1f}."
        )
    if best.mean is not None and other.mean is not None:
        sentences.append(
            f"On unseen domains, the checkpoints that NAC-ME chooses have a test accuracy of "
            f"{best.mean:.2f} %, those that validation accuracy chooses {other.mean:.2f} %."
        )
    return " ".join(sentences)


def _where(ranked: RankedRuns) -> str:
    return AVERAGE if len(ranked.targets) > 1 else ranked.targets[0]


def _headline(ranked: RankedRuns) -> Headline:
    name = ranked.dataset.upper() if len(ranked.dataset) <= 4 else capital(ranked.dataset)
    checkpoints = sum(len(run.ranking.checkpoints) for run in ranked.runs)
    facts = [count(len(ranked.runs), "run"), count(checkpoints, "checkpoint")]
    facts.append(f"layer {ranked.runs[0].ranking.layer}")
    tiles = [("", list(_tiles(ranked)))] if ranked.has_test else []
    return Headline(
        f"{name or 'Your run'}: which checkpoint generalizes?", ranked.arch,
        ranking_verdict(ranked), facts, ranked.notes, tiles, topic="Model evaluation",
    )  # fmt: skip


def _tiles(ranked: RankedRuns) -> Iterator[Tile]:
    where = _where(ranked)
    for title, find in (("RC", ranked.rc), ("Test accuracy", ranked.accuracy)):
        ours, theirs = find("nac-me", where), find("validation", where)
        below = [f"validation accuracy {_told(theirs)}"]
        if title != "RC":
            below.append(f"oracle {_told(find('oracle', where))}")
        yield Tile(f"{title}, NAC-ME", _told(ours), "", below)


def _told(found: Summary) -> str:
    return UNDEFINED if found.mean is None else f"{found.mean:.1f}"


def _results(ranked: RankedRuns) -> Section:
    if not ranked.has_test:
        text = "Without data of target domains there is no test accuracy to compare with."
        return Section("results", "Results", [ranking_verdict(ranked), text])
    trials = {run.trial for run in ranked.runs}
    error = "Mean \u00b1 standard error over trials. " if len(trials) > 1 else ""
    return Section("results", "RC and ACC", [error + _TIES, choice_table(ranked)])


def _paper(ranked: RankedRuns) -> Optional[Section]:
    if not ranked.paper:
        return None
    text = (
        "The paper fine-tunes networks that were pretrained on ImageNet, at 224 pixels, for 5000 "
        "steps with a checkpoint every 300. Other networks, sizes and training give other numbers."
    )
    rows = []
    for row in ranked.paper:
        texts = (title_of(row["domain"]), CRITERIA[row["criterion"]], row["metric"])
        rows.append(PaperRow(texts, row, ours=row["criterion"] == "nac-me"))
    return paper_section(("Domain", "Criterion"), rows, "error", text, undefined=UNDEFINED)


def _over_steps(ranked: RankedRuns) -> Section:
    text = "The dotted line marks the checkpoint that NAC-ME chooses."
    pictures = [steps_picture(run) for run in ranked.runs]
    return Section("steps", "Over training", [Pictures("panels", pictures, text=text)])


def _volume(ranked: RankedRuns) -> Optional[Section]:
    picture = volume_picture(ranked)
    if picture is None:
        return None
    text = (
        "With few test samples, test accuracy itself is noise, and no criterion can agree with "
        "it. Means over random draws of the test data and over runs; the bands are one standard "
        "deviation over runs."
    )
    return Section("volume", "Volume of test data", [Pictures("wide", [picture], text=text)])


def _settings(ranked: RankedRuns) -> Section:
    tried = len(ranked.runs[0].ranking.candidates)
    text = (
        f"Chosen for each run among {count(tried, 'setting')}, by the rank correlation of coverage "
        "with validation accuracy on source domains. No target data is used."
    )
    return Section("settings", "Settings", [text, settings_table(ranked)])


def _checkpoints(ranked: RankedRuns) -> Section:
    tables: list[Block] = [checkpoints_table(run) for run in ranked.runs]
    return Section("checkpoints", "Checkpoints", tables)


def _about(ranked: RankedRuns) -> Section:
    first = ranked.runs[0]
    data = [
        (f"{name} ({_ROLES.get(role, role)})", count(n, "sample"))
        for role, domains in first.ranking.sizes.items()
        for name, n in domains.items()
    ]
    title = "Data" if len(ranked.runs) == 1 else f"Data of {first.name}"
    versions = [*ranked.versions.items(), ("created", ranked.created)]
    return about_section("ranking", ranked.command, {title: data, "Versions": versions})
