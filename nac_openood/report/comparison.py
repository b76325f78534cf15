"""Reports on comparisons of methods: page, Markdown, CSV and LaTeX files, terminal."""

from __future__ import annotations

from itertools import product
from math import hypot
from pathlib import Path
from textwrap import wrap
from typing import Any, Iterator, Mapping, Sequence

from nac_openood.benchmark.paper.published import LEADERBOARD
from nac_openood.benchmark.run.results import GROUP_NAMES, GROUP_WORDS, Results
from nac_openood.benchmark.run.significance import Difference, Paired, significant_side
from nac_openood.report import figures, render
from nac_openood.report import formatting as fmt
from nac_openood.report.gallery import hardest_samples, sentences, story
from nac_openood.report.methods import Ranked, RankedMethod, hyperparameters
from nac_openood.report.render import Content, Figures, Section, Tile
from nac_openood.report.scores import distributions, layers_section, rocs
from nac_openood.tables import Cell, Column, Entry, Table, metric_bars, metric_key, text_columns

_COSTS = {"ms_per_image": "ms / image", "setup_seconds": "Setup, s", "peak_mb": "Peak MB"}
_ABOUT_TESTS = (
    "DeLong's test, paired by sample: would other test samples of the same kind give the same "
    "order? Differences are percentage points of AUROC, means over OOD sets and checkpoints. The "
    "p-values are corrected (Holm) for the number of methods in the table, but not for settings "
    "that you tried before; p < 0.01 counts as significant. The checkpoints are taken as fixed: "
    "'Ahead on' is the number of them on which the method is ahead."
)
_ROLES = {"id": "in-distribution", "csid": "in-distribution, covariate shift"}


def write_tables(results: Results, *, latex: bool = False) -> list[Path]:
    """Write `results.csv`, `results.md`, `summary.csv` and `scores.npz`, without matplotlib.

    Args:
        results: the comparison.
        latex: whether to write `results.tex`, too.
    """
    texts = {"summary.csv": render.csv_text([_titled(row) for row in results.summary()])}
    texts.update({"results.tex": results_latex(results)} if latex else {})
    document = comparison_document(results)
    written = render.write_results(results.folder, results_csv(results), document, texts)
    return [*written, results.write_scores()]


def write_page(results: Results) -> Path:
    """Write `report.html`.

    Raises:
        NACError: if matplotlib is not installed.
    """
    return render.write_html(results.folder, comparison_document(results))


def results_csv(results: Results) -> str:
    """`Results.table`: a line for each method, run and dataset."""
    return render.csv_text([_titled(row) for row in results.table()])


def _titled(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the metrics' titles as keys: both kinds of FPR@95 say which they are."""
    titles = {f"{k}{end}": f"{v}{end}" for k, v in fmt.SHOWN.items() for end in ("", " std")}
    return {titles.get(k, k): v for k, v in row.items()}


def results_latex(results: Results) -> str:
    """The ranking, and a table of the OOD sets for each metric, for the LaTeX package booktabs."""
    ranked = Ranked(results)
    whole = _ranking_table(ranked)
    shown = range(1, len(whole.columns) - 2)  # not the rank, times and implementations
    columns = [whole.columns[i] for i in shown]
    ranking = Table("", columns, [[row[i] for i in shown] for row in whole.rows])
    what = f"{fmt.set_title(results.id_name)}, {results.arch}. In percent{_spread(results)}."
    notes = " ".join(f"{m} is {m.meaning}." for m in ranked.metrics.values() if m.meaning)
    tables = [("", ranking, f"Means over OOD sets: {what} {notes}".rstrip())]
    for key, table in zip([*ranked.metrics, *fmt.MORE], _set_tables(ranked)):
        tables.append(("-" + metric_key(key).replace("_", "-"), table, f"{table.title}: {what}"))
    parts = [render.latex_table(t, text, f"tab:ood{end}") for end, t, text in tables]
    return "\n".join(["% needs \\usepackage{booktabs}", *parts])


def summary_table(results: Results) -> str:
    """The ranking with `>` before our methods, the verdict and notes, at most 100 columns wide."""
    ranked = Ranked(results)
    opening = () if results.confident is None else sentences(results, results.confident)
    table = _ranking_table(ranked)
    # there is no room for the last column, the implementations
    lines = render.text_table(table, len(table.columns) - 1)
    lines += [render.shortened(f"    {problem}") for problem in _problems(ranked)]
    on_leaderboard = any(row.get("source") == LEADERBOARD for row in results.paper)
    return render.terminal_text(
        [line for text in opening for line in wrap(text, 100)], lines,
        *(against_paper(ranked).blocks if on_leaderboard else ()), *_metric_notes(ranked),
        verdict(ranked), *(f"Note: {note}" for note in results.notes),
    )  # fmt: skip


def comparison_document(results: Results) -> render.Document:
    """Everything there is to show; figures are not drawn yet."""
    ranked = Ranked(results)
    tiles = {m.title: list(_tiles(ranked, m)) for m in ranked.worked if m.ours}
    sections = [_ranking, _significance, _bars, _datasets, distributions, rocs, _times]
    sections += [layers_section, hardest_samples, hyperparameters, against_paper]
    return render.Document(
        f"{fmt.capital(fmt.set_title(results.id_name))}: how NAC compares",
        results.arch, verdict(ranked),
        [section(ranked) for section in sections], list(_facts(ranked)), results.notes,
        [(title, own) for title, own in tiles.items() if own],
        command=results.command, about=_about(results), story=story(results),
    )  # fmt: skip


def verdict(ranked: Ranked) -> str:
    """How each of our methods ranks, a sentence each."""
    ours = [m for m in ranked.methods if m.ours]
    if not ranked.worked:
        return "No method has a result; the ranking lists the reasons."
    if not ours:
        return f"{fmt.count(len(ranked.worked), 'method')} compared; NAC is not among them."
    sentences = []
    for m in ours:
        ranks = [_rank_text(ranked, m, group) for group in ranked.groups if group in m.ranks]
        text = f"is {' and '.join(ranks)}" if ranks else "has no near-OOD or far-OOD mean"
        text = text if m.status == "ok" else f"has no result ({m.error})"
        sentences.append(f"{m.title} {text}.")
    return " ".join(sentences)


def _rank_text(ranked: Ranked, m: RankedMethod, group: str) -> str:
    """`2nd of 20 on near-OOD (AUROC 88.10, 0.52 points behind KNN)`."""
    others = [other for other in ranked.worked if group in other.ranks and other is not m]
    gap = ""
    if others:
        best = max(others, key=lambda other: other.auroc(group))
        points = round(m.auroc(group) - best.auroc(group), 2)
        side = f"{abs(points):.2f} points {'ahead of' if points > 0 else 'behind'}"
        gap = f", {side if points else 'level with'} {best.title}"
    rank = m.ranks[group]
    tied = "tied for " if any(other.ranks[group] == rank for other in others) else ""
    text = f"{tied}{fmt.ordinal(rank)} of {len(others) + 1} on {GROUP_WORDS[group]}"
    return f"{text} (AUROC {m.auroc(group):.2f}{gap})"


def _facts(ranked: Ranked) -> Iterator[str]:
    results = ranked.results
    yield f"{len(ranked.worked)} of {fmt.count(len(ranked.methods), 'method')} with a result"
    yield fmt.count(len(results.runs), "checkpoint")
    yield fmt.count(len(ranked.ood_sets), "OOD dataset")
    yield fmt.count(sum(s.images for s in results.sets), "test sample")
    accuracies = [r.accuracy for r in results.runs if r.accuracy is not None]
    if accuracies:
        span = dict.fromkeys(f"{a:.2f}" for a in (min(accuracies), max(accuracies)))
        yield "\u2013".join(span) + " % ID accuracy"


def _tiles(ranked: Ranked, m: RankedMethod) -> Iterator[Tile]:
    for group in (g for g in ranked.groups if g in m.ranks):
        title, cell = GROUP_NAMES[group], Cell.of(m.value(group))
        many = sum(group in other.ranks for other in ranked.methods)
        yield Tile(f"{title} rank", fmt.ordinal(m.ranks[group]), f"of {many}", ["by AUROC"])
        others = [(shown, m.value(group, k)) for k, shown in fmt.SHOWN.items() if k != "AUROC"]
        lines = [f"{shown} {v.mean:.1f}" for shown, v in others if v is not None]
        yield Tile(f"{title} AUROC", cell.text, cell.spread, lines)
    if "ms_per_image" in m.times:
        lines = [f"setup {fmt.quantity(m.times.get('setup_seconds'))} s"]
        lines += ["uncertain: busy machine"] if m.disturbed else []
        yield Tile("Time per image", fmt.quantity(m.times["ms_per_image"]), "ms", lines)


def _ranking(ranked: Ranked) -> Section:
    """Means, times and implementations, and what went wrong."""
    order = "Methods are ordered by near-OOD AUROC, or by far-OOD AUROC if there is no near-OOD."
    text = f"Percent{_spread(ranked.results)}. {order}"
    notes, problems = _metric_notes(ranked), _problems(ranked)
    return Section("ranking", "Ranking", [text, *notes, _ranking_table(ranked), problems])


def _spread(results: Results) -> str:
    n = len(results.runs)
    return f", mean \u00b1 sample standard deviation over {n} checkpoints" if n > 1 else ""


def _problems(ranked: Ranked) -> list[str]:
    """Why methods have no result, on all or on some checkpoints."""
    found = []
    for m in (m for m in ranked.methods if m.error):
        none = f" {m.status}{m.implementation and f' ({m.implementation})'}: {m.error}"
        some = f": {len(m.worked)} of {len(m.rows)} runs succeeded ({m.error})"
        found.append(m.title + (some if m.worked else none))
    return found


def _ranking_table(ranked: Ranked) -> Table:
    """One row for each method with a result, best first."""
    shown = [(group, key) for group in ranked.groups for key in ranked.metrics]
    columns = [Column("#"), *text_columns("Method")]
    for group, key in shown:
        title, note, better, _ = fmt.SHOWN[key]
        columns.append(Column(f"{title}\n{note}".rstrip(), GROUP_NAMES[group], better))
    columns += [Column("ms / image"), *text_columns("Implementation")]
    rows: list[list[Entry]] = []
    for rank, m in enumerate(ranked.worked, 1):
        cells = [*(_cell(m, *at) for at in shown), _cost(m, "ms_per_image")]
        rows.append([str(rank), m.title, *cells, m.implementation])
    return Table("", columns, rows, _ours(ranked.worked))


def _ours(methods: Sequence[RankedMethod]) -> list[int]:
    return [number for number, m in enumerate(methods) if m.ours]


def _cell(m: RankedMethod, dataset: str, key: str) -> Cell:
    return Cell.of(m.value(dataset, key), m.ranks.get(dataset) if key == "AUROC" else None)


def _cost(m: RankedMethod, key: str) -> Cell:
    """A time or memory; `~` marks an uncertain one."""
    value = m.times.get(key)
    mark = "~" if m.disturbed and key == "ms_per_image" and value is not None else ""
    return Cell(mark + fmt.quantity(value), value=value)


def _metric_notes(ranked: Ranked) -> list[str]:
    """What FPR@95 means, which differs between papers, and which times are uncertain."""
    meanings = [f"{m} is {m.meaning}." for m in ranked.metrics.values() if m.meaning]
    return [*([" ".join(meanings)] if meanings else []), *_uncertain_times(ranked)]


def _uncertain_times(ranked: Ranked) -> list[str]:
    text = "Times marked ~ are uncertain: the machine was busy while they were measured."
    return [text] if any(m.disturbed for m in ranked.methods) else []


def _datasets(ranked: Ranked) -> Section:
    """A table for each metric with a column for each dataset."""
    return Section("datasets", "Results by dataset", list(_set_tables(ranked)))


def _set_tables(ranked: Ranked) -> Iterator[Table]:
    names, heads = ranked.ood_sets, text_columns("Method")
    groups = {s.name: f"{fmt.capital(s.role)}-OOD" for s in ranked.results.sets}
    for key, shown in {**ranked.metrics, **fmt.MORE}.items() if names else ():
        columns = [Column(fmt.set_title(n), groups[n], shown.better) for n in names]
        rows = [[Cell(m.title), *(_cell(m, n, key) for n in names)] for m in ranked.worked]
        title = f"{shown}, % ({shown.better} is better)"
        yield Table(title, [*heads, *columns], rows, _ours(ranked.worked))


def _significance(ranked: Ranked) -> Section:
    """Which methods differ from NAC+, and from the best method, by more than chance."""
    blocks: list[Content] = [_ABOUT_TESTS]
    for group in ranked.groups:
        paired = Paired(ranked.results, group)
        best = max(ranked.worked, key=lambda m: m.auroc(group))
        plus = [m for m in ranked.worked if m.method == "nac_plus" and group in m.ranks]
        for reference in dict.fromkeys([*plus, best]):
            found = {d.method: d for d in paired.against(reference.method)}
            others = [m for m in ranked.worked if m.method in found]
            rows = [_difference(m.title, found[m.method]) for m in others]
            title = f"{GROUP_NAMES[group]} AUROC compared with {reference.title}"
            title += ", the best" if reference is best else ""
            columns = [*text_columns("Method"), Column("Difference", better="higher")]
            columns += map(Column, ("99 % interval", "p (Holm)", "Ahead on", "By chance?"))
            blocks += [Table(title, columns, rows, _ours(others))] if rows else []
    title = "Which differences are more than chance"
    return Section("significance", title, blocks if len(blocks) > 1 else [])


def _difference(title: str, found: Difference) -> list[Entry]:
    side = significant_side(found)
    return [
        title, Cell(f"{found.points:+.2f}", value=found.points),
        f"{found.low:+.2f} to {found.high:+.2f}",
        Cell("< 0.001" if found.p < 0.001 else f"{found.p:.3f}", value=found.p),
        f"{found.ahead} of {found.runs}", f"no, {side}" if side else "perhaps",
    ]  # fmt: skip


def _bars(ranked: Ranked) -> Section:
    """Every metric of all methods, with whiskers of one standard deviation over runs."""
    charts = []
    for group, (key, shown) in product(ranked.groups, ranked.metrics.items()):
        found = [(m, m.values[group, key]) for m in ranked.worked if (group, key) in m.values]
        found.sort(key=lambda pair: pair[1].mean, reverse=shown.better == "higher")
        rows = [(m.title, [value.mean]) for m, value in found]
        ours, spreads = [m.title for m, _ in found if m.ours], [value.std for _, value in found]
        title, style = f"{GROUP_NAMES[group]} {shown}", {"spreads": spreads, "width": 350.0}
        if found:
            charts.append(metric_bars(shown.title, title, [shown.title], rows, ours, **style))
    whiskers = "Whiskers show one sample standard deviation over checkpoints. "
    text = f"{whiskers if len(ranked.results.runs) > 1 else ''}Our methods are blue and bold."
    blocks = [Figures(charts, text)] if charts else []
    return Section("bars", "All methods at a glance", blocks)


def _times(ranked: Ranked) -> Section:
    """AUROC over time as a picture, then times, and memory of a GPU, as a table."""
    measured = [m for m in ranked.methods if m.times]
    # on a CPU, peak memory depends on what ran before
    on_cpu = str(ranked.results.machine.get("device", "CPU")).upper() == "CPU"
    costs = {k: title for k, title in _COSTS.items() if k != "peak_mb" or not on_cpu}
    text = "Times include the network's forward pass, as if each method ran alone."
    groups = {g: [m for m in measured if g in m.ranks and m.ms > 0] for g in ranked.groups}
    pictures = [_time_picture(own, group) for group, own in groups.items() if own]
    hint = "Up and to the left is better. Our methods are blue diamonds."
    rows = [[Cell(m.title), *(_cost(m, key) for key in costs)] for m in measured]
    columns = [*text_columns("Method"), *map(Column, costs.values())]
    table = Table("", columns, rows, _ours(measured))
    blocks: list[Content] = [text, *_uncertain_times(ranked), Figures(pictures, hint), table]
    return Section(
        "times", "Time and memory" if "peak_mb" in costs else "Time", blocks if measured else []
    )


def _time_picture(methods: Sequence[RankedMethod], group: str) -> figures.Picture:
    """AUROC of a group over milliseconds per image, on a logarithmic scale."""
    title = GROUP_NAMES[group]

    def paint(canvas: Any) -> None:
        axis = canvas.subplots()
        figures.log_axis(axis)
        axis.margins(0.1)
        axis.set(xlabel="milliseconds per image (log scale)", ylabel=f"{title} AUROC, %")
        axis.grid()
        for row, m in enumerate(sorted(methods, key=lambda m: m.auroc(group))):
            color, weight = (figures.OUR_COLOR, "bold") if m.ours else (figures.INK, "normal")
            at = m.ms, m.auroc(group)
            axis.scatter(*at, marker="D" if m.ours else "o", s=62 if m.ours else 30, color=color)
            axis.annotate(
                m.title, at, (1.03, (row + 0.5) / len(methods)), color=color, fontsize=8.5,
                textcoords="axes fraction", weight=weight, va="center",
                arrowprops={"arrowstyle": "-", "color": figures.CALM, "lw": 0.5, "shrinkB": 3},
            )  # fmt: skip

    listed = [f"{m.title} {fmt.quantity(m.ms)} ms and {m.auroc(group):.1f} %" for m in methods]
    alt = f"Time per image and {title} AUROC: {', '.join(listed)}."
    return figures.Picture(title, alt, (540, 360), paint)


def against_paper(ranked: Ranked) -> Section:
    """Measured and published numbers side by side; empty if not requested."""
    methods = {m.method: m for m in ranked.methods}
    rows, far_off = [], []
    for row in ranked.results.paper:
        m = methods.get(row["method"])
        title, metric = m.title if m else row["method"], row["metric"]
        texts = [title, fmt.set_title(row["dataset"]), str(fmt.SHOWN.get(metric, metric))]
        rows.append((texts, row, m is not None and m.ours))
        noise = hypot(row["measured_std"] or 0, row["published_std"] or 0)
        if noise and abs(row["difference"] or 0) > 2 * noise:
            far_off.append(" ".join([*texts, f"{row['difference']:+.2f}"]))
    more = "more than twice the standard deviation over runs (both added in quadrature)"
    text = (
        f"These differ by {more}: {', '.join(far_off)}." if far_off else f"None differs by {more}."
    )
    if not any(row["published_std"] for _, row, _ in rows):
        text = "No standard deviations over runs are published to compare differences with."
    return render.paper_section(("Method", "Dataset"), rows, "std", text)


def _about(results: Results) -> dict[str, Mapping[str, str]]:
    """The data, the checkpoints, versions and the machine."""
    data, runs = {}, {}
    for s in results.sets:
        role = _ROLES.get(s.role, f"{s.role}-OOD")
        skipped = f", {s.skipped:,} skipped" if s.skipped else ""
        data[fmt.set_title(s.name)] = f"{role}, {fmt.count(s.images, 'sample')}{skipped}"
    for r in results.runs:
        accuracy = "" if r.accuracy is None else f", {r.accuracy:.2f} % ID accuracy"
        runs[r.name] = r.checkpoint + accuracy
    machine = {name: fmt.one_line(value) for name, value in results.machine.items()}
    machine["created"] = results.created
    return {"Data": data, "Checkpoints": runs, "Versions": results.versions, "Machine": machine}
