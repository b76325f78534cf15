"""Reports on rankings of checkpoints: `results.csv`, `results.md`, `report.html`, terminal."""

from __future__ import annotations

from typing import Any, Sequence

from nac_openood.benchmark.run.results import Value
from nac_openood.evaluation.ranking import AVERAGE, CRITERIA, RankedRun, RankedRuns
from nac_openood.report import render
from nac_openood.report.formatting import capital, count
from nac_openood.report.render import Figures, Section
from nac_openood.tables import Column, Entry, Lines, Series, Table, text_columns

_UNDEFINED = "undefined"
#: The metrics of the table, and the criteria that have them: the oracle has no RC.
_METRICS = {"RC": ("validation", "nac-me"), "ACC": tuple(CRITERIA)}
_ROLES = {"train": "training", "val": "validation", "test": "test", "oracle": "choice by oracle"}


def ranked_csv(ranked: RankedRuns) -> str:
    """A line for each checkpoint of each run, with all digits."""
    records = []
    for run in ranked.runs:
        criteria = [c for c in CRITERIA if c != "oracle" or run.ranking.has_test]
        chosen = {criterion: run.ranking.chosen(criterion).name for criterion in criteria}
        names = ("n_bins", "steepness", "full_count")
        settings = {name: getattr(run.ranking.config, name) for name in names}
        for each in run.ranking.checkpoints:
            records.append({
                "target": run.target, "trial": run.trial, "checkpoint": each.name,
                "step": each.step, "coverage": each.coverage, "validation": each.val,
                "test": each.test, "oracle": each.oracle, **settings,
                "chosen_by": " ".join(c for c, name in chosen.items() if name == each.name),
            })  # fmt: skip
    return render.csv_text(records)


def ranked_summary(ranked: RankedRuns) -> str:
    """The tables as text for a terminal of 100 columns."""
    tables = [*([_choice_table(ranked)] if ranked.has_test else []), _settings_table(ranked)]
    notes = [f"Note: {note}" for note in _notes(ranked)]
    return render.terminal_text(*tables, ranking_verdict(ranked), *notes)


def ranked_document(ranked: RankedRuns) -> render.Document:
    """Everything there is to show; figures are not drawn yet."""
    name = ranked.dataset.upper() if len(ranked.dataset) <= 4 else capital(ranked.dataset)
    many = sum(len(run.ranking.checkpoints) for run in ranked.runs)
    first = ranked.runs[0]
    data = {
        f"{domain} ({_ROLES.get(role, role)})": count(n, "sample")
        for role, domains in first.ranking.sizes.items()
        for domain, n in domains.items()
    }
    marked = "The dotted line marks the checkpoint that NAC-ME chooses."
    steps = Section("steps", "Over training", [Figures(list(map(_steps, ranked.runs)), marked)])
    tables = list(map(_checkpoints_table, ranked.runs))
    checkpoints = Section("checkpoints", "Checkpoints", tables)
    runs = count(len(ranked.runs), "run"), count(many, "checkpoint")
    about = {
        "Data" if len(ranked.runs) == 1 else f"Data of {first.name}": data,
        "Versions": {**ranked.versions, "created": ranked.created},
    }
    return render.Document(
        f"{name or 'Your run'}: which checkpoint generalizes?", ranked.arch,
        ranking_verdict(ranked),
        [_results(ranked), _paper(ranked), steps, _volume(ranked), _settings(ranked), checkpoints],
        [*runs, f"layer {first.ranking.layer}"], _notes(ranked),
        [("", _tiles(ranked))] if ranked.has_test else [],
        topic="Model evaluation", command=ranked.command, about=about,
    )  # fmt: skip


def _notes(ranked: RankedRuns) -> list[str]:
    """What a reader should know, also why the oracle is not the best where it is not."""
    targets = ranked.targets if ranked.has_test else []
    found: Any = {t: {c: ranked.accuracy(c, t).mean for c in CRITERIA} for t in targets}
    beaten = [_domain(t) for t, own in found.items() if own["oracle"] < max(own.values())]
    note = (
        f"{', '.join(beaten)}: ACC is not measured on the samples by which the oracle chooses, so "
        "another criterion can choose a better checkpoint."
    )
    return [*ranked.notes, *([note] if beaten else [])]


def ranking_verdict(ranked: RankedRuns) -> str:
    """The result in one or two sentences."""
    if not ranked.has_test:
        names = [run.ranking.chosen().name for run in ranked.runs]
        return f"NAC-ME chooses {', '.join(names)}, judged by training data alone."
    found = ranked.measured()[_target(ranked)]
    ours, validation = (found[c]["RC"].mean for c in ("nac-me", "validation"))
    best, other = (found[c]["ACC"].mean for c in ("nac-me", "validation"))
    text = "The rank correlation with test accuracy is undefined for some runs; see the notes."
    if ours is not None and validation is not None:
        text = "The rank correlation with test accuracy is "
        text += f"{ours:.1f} for coverage and {validation:.1f} for validation accuracy."
    chosen = f"{best:.2f} % if NAC-ME chooses the checkpoint, {other:.2f} % if validation accuracy"
    return f"{text} Test accuracy on unseen domains is {chosen} does."


def _target(ranked: RankedRuns) -> str:
    """The row of the table that summarizes the ranking."""
    return AVERAGE if len(ranked.targets) > 1 else ranked.targets[0]


def _tiles(ranked: RankedRuns) -> list[render.Tile]:
    found, tiles = ranked.measured()[_target(ranked)], []
    for metric, criteria in _METRICS.items():
        means = {c: found[c][metric].mean for c in criteria}
        texts = {c: _UNDEFINED if mean is None else f"{mean:.1f}" for c, mean in means.items()}
        ours = texts.pop("nac-me")
        lines = [f"{CRITERIA[c]} {text}" for c, text in texts.items()]
        tiles.append(render.Tile(f"{metric}, NAC-ME", ours, "", lines))
    return tiles


def _results(ranked: RankedRuns) -> Section:
    if not ranked.has_test:
        text = "Without data of target domains there is no test accuracy to compare with."
        return Section("results", "Results", [ranking_verdict(ranked), text])
    trials = {run.trial for run in ranked.runs}
    text = "Mean \u00b1 standard error over trials. " if len(trials) > 1 else ""
    text += (
        "RC is Spearman's rank correlation with test accuracy over the checkpoints of a run, times "
        "100. Equal values share the mean of their ranks; the authors' code breaks such ties by "
        "position. ACC is the test accuracy in percent of the checkpoint that a criterion chooses. "
        "\u0394 is NAC-ME minus validation accuracy."
    )
    return Section("results", "RC and ACC", [text, _choice_table(ranked)])


def _choice_table(ranked: RankedRuns) -> Table:
    """The paper's table: RC and ACC of each criterion by target domain."""
    columns = text_columns("Target domain")
    targets = [*ranked.targets, *([AVERAGE] if len(ranked.targets) > 1 else [])]
    rows: list[list[Entry]] = [[_domain(target)] for target in targets]
    measured: Any = ranked.measured()
    for metric, criteria in _METRICS.items():
        columns += [Column(CRITERIA[c], metric, "higher") for c in criteria]
        columns.append(Column("\u0394", metric))
        for row, target in zip(rows, targets):
            found = {c: measured[target][c][metric] for c in criteria}
            row += [_UNDEFINED if each.mean is None else each for each in found.values()]
            pair = found["nac-me"].mean, found["validation"].mean
            row.append(_UNDEFINED if None in pair else f"{pair[0] - pair[1]:+.2f}")
    return Table("", columns, rows, [targets.index(AVERAGE)] if AVERAGE in targets else [])


def _domain(target: str) -> str:
    return capital(target.replace("_", " ")) if target else "Target domains"


def _paper(ranked: RankedRuns) -> Section:
    text = (
        "The paper fine-tunes networks that were pretrained on ImageNet, at 224 pixels, for 5000 "
        "steps with a checkpoint every 300. Other networks, sizes and training give other numbers."
    )
    rows = []
    for row in ranked.paper:
        names = _domain(row["domain"]), CRITERIA[row["criterion"]], row["metric"]
        rows.append((names, row, row["criterion"] == "nac-me"))
    return render.paper_section(("Domain", "Criterion"), rows, "error", text, undefined=_UNDEFINED)


def _steps(run: RankedRun) -> Lines:
    """G relative to its maximum, validation and test accuracy, over training steps."""
    checkpoints = run.ranking.checkpoints
    numbered = all(each.step is not None for each in checkpoints)
    steps = [each.step if numbered else i for i, each in enumerate(checkpoints, start=1)]
    most = max(each.coverage for each in checkpoints) or 1.0
    curves = {
        "G, % of its maximum": [100 * each.coverage / most for each in checkpoints],
        "validation accuracy": [100 * each.val for each in checkpoints],
    }
    if run.ranking.has_test:
        curves["test accuracy"] = [100 * (each.test or 0.0) for each in checkpoints]
    series = [Series(name, list(zip(steps, values))) for name, values in curves.items()]
    title, label = run.name if run.target else "Over training", "training step"
    mark = steps[checkpoints.index(run.ranking.chosen())]
    return Lines("steps", title, label if numbered else "checkpoint", "%", series, mark=mark)


def _volume(ranked: RankedRuns) -> Section:
    """RC over the share of test data that it is measured with."""
    series = []
    for criterion in ("nac-me", "validation"):
        by_share: dict[float, list[float]] = {}
        for point in (p for run in ranked.runs for p in run.ranking.volume):
            if point.criterion == criterion and point.mean is not None:
                by_share.setdefault(100 * point.share, []).append(100 * point.mean)
        points = [(share, *Value.of(values)) for share, values in sorted(by_share.items())]
        series += [Series(CRITERIA[criterion], points)] if points else []
    title, label = "RC against the volume of test data", "share of the test data, % (log scale)"
    figure = Lines("volume", title, label, "RC with test accuracy", series, log_x=True)
    text = (
        "On few test samples, test accuracy is too noisy to agree with any criterion. Means over "
        "random draws of the test data and over runs; bands show one sample deviation over runs."
    )
    return Section("volume", "Volume of test data", [Figures([figure], text)] if series else [])


def _settings(ranked: RankedRuns) -> Section:
    tried = len(ranked.runs[0].ranking.candidates)
    text = (
        f"Chosen for each run among {count(tried, 'setting')}, by the rank correlation of coverage "
        "with validation accuracy on source domains. No target data is used."
    )
    return Section("settings", "Settings", [text, _settings_table(ranked)])


def _settings_table(ranked: RankedRuns) -> Table:
    """What was chosen for each run, and how well coverage agrees with validation accuracy."""
    numbers = ("Trial", "M", "alpha", "O*", "RC with validation")
    choices = ("Validation chooses", "NAC-ME chooses")
    columns = [*text_columns("Target domain"), *map(Column, numbers), *text_columns(*choices)]
    rows: list[Sequence[Entry]] = []
    for run in ranked.runs:
        config, rc = run.ranking.config, run.ranking.rc_val
        settings = (config.n_bins, config.steepness, config.full_count)
        trial = None if run.trial is None else str(run.trial)
        found: list[Entry] = [_domain(run.target), trial, *(f"{number:g}" for number in settings)]
        names = [run.ranking.chosen(criterion).name for criterion in ("validation", "nac-me")]
        rows.append([*found, _UNDEFINED if rc is None else 100 * rc, *names])
    return Table("", columns, rows)


def _checkpoints_table(run: RankedRun) -> Table:
    """The checkpoints of a run, best first by NAC-ME."""
    titles = ["G", "Validation, %", *(["Test, %"] if run.ranking.has_test else [])]
    columns = [Column("#"), *text_columns("Checkpoint")]
    columns += [Column(title, better="higher") for title in titles]
    rows = []
    for rank, each in enumerate(run.ranking.order(), start=1):
        accuracies = [None if a is None else 100 * a for a in (each.val, each.test)]
        row = [str(rank), each.name, f"{each.coverage:.5f}", *accuracies]
        rows.append(row[: len(columns)])
    return Table(run.name if run.target else "", columns, rows, [0])
