"""RC and ACC of the criteria, settings and checkpoints as tables."""

from __future__ import annotations

from typing import Any

from nac_openood.benchmark.run.results import Value
from nac_openood.evaluation.leave_one_out import AVERAGE, RankedRun, RankedRuns, Summary
from nac_openood.evaluation.ranking import CRITERIA
from nac_openood.report.blocks import Cell, Column, Line, Table
from nac_openood.report.csv_file import csv_text
from nac_openood.report.words import capital

UNDEFINED = "undefined"
_SHOWN = tuple(CRITERIA)


def choice_table(ranked: RankedRuns) -> Table:
    """The paper's table: RC and ACC of each criterion by target domain.

    The difference is NAC-ME minus validation accuracy.
    """
    columns = [Column("Target domain", "name")]
    for metric, criteria in (("RC", _SHOWN[:2]), ("ACC", _SHOWN)):
        columns += [Column(CRITERIA[c], group=metric, better="higher") for c in criteria]
        columns.append(Column("\u0394", group=metric))
    lines = []
    for target in [*ranked.targets, *([AVERAGE] if len(ranked.targets) > 1 else [])]:
        cells = [Cell(title_of(target))]
        for find, criteria in ((ranked.rc, _SHOWN[:2]), (ranked.accuracy, _SHOWN)):
            cells += [_cell(find(criterion, target)) for criterion in criteria]
            cells.append(_delta(find("nac-me", target), find("validation", target)))
        lines.append(Line(cells, ours=target == AVERAGE))
    return Table("", columns, lines)


def title_of(target: str) -> str:
    """A target domain in a heading."""
    return capital(target.replace("_", " ")) if target else "Target domains"


def _cell(found: Summary) -> Cell:
    if found.mean is None:
        return Cell(UNDEFINED)
    return Cell.of_mean(Value(found.mean, found.error))


def _delta(ours: Summary, theirs: Summary) -> Cell:
    if ours.mean is None or theirs.mean is None:
        return Cell(UNDEFINED)
    return Cell(f"{ours.mean - theirs.mean:+.2f}", value=ours.mean - theirs.mean)


def settings_table(ranked: RankedRuns) -> Table:
    """What was chosen for each run, and how well coverage agrees with validation accuracy."""
    columns = [
        Column("Target domain", "name"), Column("Trial"), Column("M"), Column("alpha"),
        Column("O*"), Column("RC with validation"), Column("Validation chooses", "text"),
        Column("NAC-ME chooses", "text"),
    ]  # fmt: skip
    lines = []
    for run in ranked.runs:
        config, rc = run.ranking.config, run.ranking.rc_val
        numbers = (config.n_bins, config.steepness, config.full_count)
        cells = [Cell(f"{number:g}", value=number) for number in numbers]
        told = Cell(UNDEFINED if rc is None else f"{100 * rc:.2f}", value=rc)
        chosen = [Cell(run.ranking.chosen(c).name) for c in ("validation", "nac-me")]
        trial = Cell() if run.trial is None else Cell(str(run.trial))
        lines.append(Line([Cell(title_of(run.target)), trial, *cells, told, *chosen]))
    return Table("", columns, lines)


def checkpoints_table(run: RankedRun) -> Table:
    """The checkpoints of a run, best first by NAC-ME."""
    ranking = run.ranking
    columns = [Column("#"), Column("Checkpoint", "name"), Column("G", better="higher"),
               Column("Validation, %", better="higher")]  # fmt: skip
    if ranking.has_test:
        columns.append(Column("Test, %", better="higher"))
    lines = []
    for rank, each in enumerate(ranking.order(), start=1):
        cells = [Cell(str(rank)), Cell(each.name), Cell(f"{each.coverage:.5f}"),
                 Cell(f"{100 * each.val:.2f}")]  # fmt: skip
        if each.test is not None:
            cells.append(Cell(f"{100 * each.test:.2f}"))
        lines.append(Line(cells, ours=rank == 1))
    return Table(run.name if run.target else "", columns, lines, sortable=True)


def ranked_csv(ranked: RankedRuns) -> str:
    """A line for each checkpoint of each run, with all digits."""
    lines: list[list[Any]] = [
        ["target", "trial", "checkpoint", "step", "coverage", "validation", "test", "oracle",
         "n_bins", "steepness", "full_count", "chosen_by"]
    ]  # fmt: skip
    for run in ranked.runs:
        config = run.ranking.config
        criteria = [c for c in CRITERIA if c != "oracle" or run.ranking.has_test]
        chosen = {criterion: run.ranking.chosen(criterion).name for criterion in criteria}
        for each in run.ranking.checkpoints:
            by = " ".join(c for c, name in chosen.items() if name == each.name)
            lines.append(
                [run.target, run.trial, each.name, each.step, each.coverage, each.val, each.test,
                 each.oracle, config.n_bins, config.steepness, config.full_count, by]
            )  # fmt: skip
    return csv_text(lines)
