"""Reports on comparisons of methods: `results.csv`, `results.md`, `report.html`, terminal."""

from __future__ import annotations

from dataclasses import replace
from textwrap import wrap
from typing import Any, Iterator, Optional, Sequence

from nac_openood.benchmark.run.results import GROUP_NAMES, GROUP_WORDS, Results
from nac_openood.report import drawing
from nac_openood.report.blocks import (
    Bullets,
    Content,
    Document,
    Picture,
    Pictures,
    Section,
    SortableTable,
    Tile,
    about_section,
    paper_section,
)
from nac_openood.report.figures import bars_picture
from nac_openood.report.formatting import (
    SHOWN,
    Metric,
    capital,
    count,
    metric,
    one_line,
    ordinal,
    quantity,
    set_title,
)
from nac_openood.report.gallery import hardest_samples
from nac_openood.report.hyperparameters import hyperparameters
from nac_openood.report.methods import RankedMethod, measured_groups, ood_sets, ranked_methods
from nac_openood.report.render import csv_text, text_table
from nac_openood.report.scores import distributions, layers_section, rocs
from nac_openood.tables import BarGroups, Cell, Column, Entry

Methods = Sequence[RankedMethod]
_NAME = Column("Method", number=False)
_COSTS = {"ms_per_image": "ms / image", "setup_seconds": "Setup, s", "peak_mb": "Peak MB"}
_ROLES = {
    "id": "in-distribution",
    "csid": "in-distribution, covariate shift",
    "near": "near-OOD",
    "far": "far-OOD",
}


def results_csv(results: Results) -> str:
    """`Results.table`: a line for each method, run and dataset."""
    table = results.table()
    heads = [[str(metric(name)) for name in table[0]]] if table else []
    return csv_text([*heads, *(list(line.values()) for line in table)])


def summary_table(results: Results) -> str:
    """The ranking with `>` before our methods, the verdict and notes, 100 columns wide at most."""
    methods = ranked_methods(results)
    table = _ranking_table(results, methods)
    # there is no room for the last column, the implementations
    rows = [row[:-1] for row in table.rows]
    lines = text_table(replace(table, columns=table.columns[:-1], rows=rows))
    notes = [f"Note: {note}" for note in results.notes]
    for text in (*_metric_notes(methods), verdict(results, methods), *notes):
        lines += ["", *wrap(text, 100)]
    return "\n".join(lines)


def comparison_document(results: Results) -> Document:
    """Everything there is to show; figures are not drawn yet."""
    methods = ranked_methods(results)
    ours = [m for m in methods if m.ours and m.status == "ok"]
    tiles = [(m.title, list(_tiles(results, m, methods))) for m in ours]
    return Document(
        f"{set_title(results.id_name)}: how NAC compares",
        results.arch,
        verdict(results, methods),
        [
            _ranking(results, methods),
            _bars(results, methods),
            _datasets(results, methods),
            distributions(results, methods),
            rocs(results, methods),
            _times(results, methods),
            layers_section(results, methods),
            hardest_samples(results),
            hyperparameters(results, methods),
            against_paper(results),
            _about(results),
        ],
        list(_facts(results, methods)),
        results.notes,
        [(title, own) for title, own in tiles if own],
        version=results.versions.get("nac_openood", ""),
    )


def verdict(results: Results, methods: Methods) -> str:
    """How each of our methods ranks, a sentence each."""
    worked = [m for m in methods if m.status == "ok"]
    ours = [m for m in methods if m.ours]
    if not worked:
        return "No method produced a result; the ranking lists the reasons."
    if not ours:
        return f"{count(len(worked), 'method')} compared; NAC is not among them."
    alone = ["It is the only method with a result."] if worked == ours and len(ours) == 1 else []
    return " ".join([*(_sentence(results, m, worked) for m in ours), *alone])


def _sentence(results: Results, m: RankedMethod, worked: Methods) -> str:
    if m.status != "ok":
        others = f"{count(len(worked), 'method')} {'does' if len(worked) == 1 else 'do'}"
        return f"{m.title} has no result ({m.error or m.status}); {others}."
    ranks = [_rank_text(m, worked, g) for g in measured_groups(results) if m.value(g) is not None]
    if not ranks:
        return f"{m.title} has no near-OOD or far-OOD mean to be ranked by."
    return f"{m.title} is {' and '.join(ranks)}."


def _rank_text(m: RankedMethod, worked: Methods, group: str) -> str:
    """`2nd of 20 on near-OOD (AUROC 88.10, 0.52 points behind KNN)`."""
    ranked = [other for other in worked if other.value(group) is not None]
    others = [(o.values[group, "AUROC"].mean, o.title) for o in ranked if o is not m]
    own, rank = m.values[group, "AUROC"].mean, m.ranks[group]
    gap = ""
    if others:
        best, title = max(others, key=lambda pair: pair[0])
        side = "ahead of" if own >= best else "behind"
        level = abs(own - best) < 0.005
        gap = f", {'level with' if level else f'{abs(own - best):.2f} points {side}'} {title}"
    tied = "tied for " if sum(o.ranks[group] == rank for o in ranked) > 1 else ""
    text = f"{tied}{ordinal(rank)} of {len(ranked)} on {GROUP_WORDS[group]}"
    return f"{text} (AUROC {own:.2f}{gap})"


def _facts(results: Results, methods: Methods) -> Iterator[str]:
    worked = sum(m.status == "ok" for m in methods)
    yield f"{worked} of {count(len(methods), 'method')} with a result"
    yield count(len(results.runs), "checkpoint")
    yield count(len(ood_sets(results)), "OOD dataset")
    yield count(sum(s.images for s in results.sets), "test sample")
    accuracies = [r.accuracy for r in results.runs if r.accuracy is not None]
    if accuracies:
        span = dict.fromkeys(f"{a:.2f}" for a in (min(accuracies), max(accuracies)))
        yield "\u2013".join(span) + " % ID accuracy"


def _tiles(results: Results, m: RankedMethod, methods: Methods) -> Iterator[Tile]:
    for group in measured_groups(results):
        value = m.value(group)
        if value is not None:
            title = GROUP_NAMES[group]
            ranked = sum(other.value(group) is not None for other in methods)
            yield Tile(f"{title} rank", ordinal(m.ranks[group]), f"of {ranked}", ["by AUROC"])
            cell = Cell.of(value)
            others = [(shown, m.value(group, k)) for k, shown in SHOWN.items() if k != "AUROC"]
            lines = [f"{shown} {v.mean:.1f}" for shown, v in others if v is not None]
            yield Tile(f"{title} AUROC", cell.text, cell.spread, lines)
    if "ms_per_image" in m.times:
        lines = [f"setup {quantity(m.times.get('setup_seconds'))} s"]
        lines += ["uncertain: busy machine"] if m.disturbed else []
        yield Tile("Time per image", quantity(m.times["ms_per_image"]), "ms", lines)


def _ranking(results: Results, methods: Methods) -> Section:
    """Means, times and implementations; methods without a result come last."""
    partly = [
        f"{m.title}: {m.runs_ok} of {m.runs} runs succeeded ({m.error})"
        for m in methods
        if m.status == "ok" and m.runs_ok < m.runs
    ]
    spread = ", mean \u00b1 standard deviation over checkpoints" if len(results.runs) > 1 else ""
    text = (
        f"Percent{spread}. Methods are ordered by near-OOD AUROC, or by far-OOD AUROC if there is "
        "no near-OOD."
    )
    table = _ranking_table(results, methods)
    return Section("ranking", "Ranking", [text, *_metric_notes(methods), table, Bullets(partly)])


def _ranking_table(results: Results, methods: Methods) -> SortableTable:
    """One row for each method, best first."""
    groups, metrics = measured_groups(results), _metrics(methods)
    columns = [
        Column("#"),
        _NAME,
        *(
            Column(shown.heading, GROUP_NAMES[group], shown.better)
            for group in groups
            for shown in metrics.values()
        ),
        Column("ms / image"),
        Column("Implementation", number=False),
    ]
    worked = [m for m in methods if m.status == "ok"]
    rows: list[list[Entry]] = [
        [str(rank), m.title, *(_cell(m, group, key) for group in groups for key in metrics),
         _cost(m, "ms_per_image"), m.implementation]
        for rank, m in enumerate(worked, 1)
    ]  # fmt: skip
    problems = []
    for m in methods:
        if m.status != "ok":
            library = f" ({m.implementation})" if m.implementation else ""
            problems.append((m.title, f"{m.status}{library}: {m.error}"))
    return SortableTable("", columns, rows, _ours(worked), problems)


def _ours(methods: Methods) -> list[int]:
    return [number for number, m in enumerate(methods) if m.ours]


def _cell(m: RankedMethod, dataset: str, key: str) -> Cell:
    return Cell.of(m.value(dataset, key), m.ranks.get(dataset) if key == "AUROC" else None)


def _cost(m: RankedMethod, key: str) -> Cell:
    """A time or memory; `~` marks an uncertain one."""
    value = m.times.get(key)
    mark = "~" if m.disturbed and key == "ms_per_image" and value is not None else ""
    return Cell(mark + quantity(value), value=value)


def _metrics(methods: Methods) -> dict[str, Metric]:
    """The metrics of which any method has values."""
    known = {key for m in methods for _, key in m.values}
    return {key: shown for key, shown in SHOWN.items() if key in known}


def _metric_notes(methods: Methods) -> list[str]:
    """What FPR@95 means, which differs between papers, and which times are uncertain."""
    meanings = [f"{m} is {m.meaning}." for m in _metrics(methods).values() if m.meaning]
    return [*([" ".join(meanings)] if meanings else []), *_uncertain_times(methods)]


def _uncertain_times(methods: Methods) -> list[str]:
    text = "Times marked ~ are uncertain: the machine was busy while they were measured."
    return [text] if any(m.disturbed for m in methods) else []


def _datasets(results: Results, methods: Methods) -> Optional[Section]:
    """A table for each metric with a column for each dataset."""
    names, worked = ood_sets(results), [m for m in methods if m.status == "ok"]
    if not names or not worked:
        return None
    groups = {s.name: f"{capital(s.role)}-OOD" for s in results.sets}
    tables = []
    for key, shown in _metrics(methods).items():
        title = f"{shown}, % ({shown.better} is better)"
        columns = [Column(set_title(n), groups[n], shown.better) for n in names]
        rows: list[list[Entry]] = [[m.title, *(_cell(m, n, key) for n in names)] for m in worked]
        tables.append(SortableTable(title, [_NAME, *columns], rows, _ours(worked)))
    return Section("datasets", "Results by dataset", tables)


def _bars(results: Results, methods: Methods) -> Optional[Section]:
    """Every metric of all methods, with whiskers of one standard deviation over runs."""
    pictures = []
    for group in measured_groups(results):
        for key, shown in _metrics(methods).items():
            found = [(m, m.values[group, key]) for m in methods if (group, key) in m.values]
            found.sort(key=lambda pair: pair[1].mean, reverse=shown.better == "higher")
            if found:
                origin, hint = (50, "50 is chance") if key == "AUROC" else (0, "lower is better")
                title, label = f"{GROUP_NAMES[group]} {shown}", f"{shown.title}, % ({hint})"
                rows = [(m.title, [value.mean]) for m, value in found]
                ours = [m.title for m, _ in found if m.ours]
                figure = BarGroups(key, title, label, [shown.title], rows, origin, ours=ours)
                pictures.append(bars_picture(figure, [v.std for _, v in found], 380))
    if not pictures:
        return None
    whiskers = "Whiskers show one standard deviation over checkpoints. "
    text = f"{whiskers if len(results.runs) > 1 else ''}Our methods are blue and bold."
    layout = "panels" if len(_metrics(methods)) > 2 else "wide"
    return Section("bars", "All methods at a glance", [Pictures(layout, pictures, text=text)])


def _times(results: Results, methods: Methods) -> Optional[Section]:
    """AUROC over time as a picture, then times and memory as a table."""
    measured = [m for m in methods if m.times]
    if not measured:
        return None
    text = "Times include the forward pass of the network, as if each method ran alone."
    groups = {g: _timed(methods, g) for g in measured_groups(results)}
    pictures = [_time_picture(points, GROUP_NAMES[g]) for g, points in groups.items() if points]
    hint = "Up and to the left is better. Our methods are blue diamonds." if pictures else ""
    rows: list[list[Entry]] = [[m.title, *(_cost(m, key) for key in _COSTS)] for m in measured]
    table = SortableTable("", [_NAME, *map(Column, _COSTS.values())], rows, _ours(measured))
    blocks: list[Content] = [
        text,
        *_uncertain_times(methods),
        Pictures("wider", pictures, text=hint),
        table,
    ]
    return Section("times", "Time and memory", blocks)


def _timed(methods: Methods, group: str) -> list[tuple[RankedMethod, float, float]]:
    """Methods with a time and an AUROC: the method, milliseconds, percent."""
    found = []
    for m in methods:
        value, ms = m.value(group), m.times.get("ms_per_image")
        if value is not None and ms is not None and ms > 0:
            found.append((m, ms, value.mean))
    return found


def _time_picture(points: Sequence[tuple[RankedMethod, float, float]], title: str) -> Picture:
    """AUROC of a group over milliseconds per image, on a logarithmic scale."""

    def paint(figure: Any) -> None:
        from matplotlib.ticker import LogLocator

        axis = figure.add_axes((0.12, 0.14, 0.7, 0.84))
        drawing.log_axis(axis)
        times, aurocs = [p[1] for p in points], [p[2] for p in points]
        room = max(0.12 * (max(aurocs) - min(aurocs)), 0.5)
        axis.set(xlim=(min(times) / 1.6, max(times) * 1.6))
        axis.set(ylim=(min(aurocs) - room, max(aurocs) + room), ylabel=f"{title} AUROC, %")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.minorticks_off()
        axis.set_xlabel("milliseconds per image (log scale)")
        axis.grid()
        axis.set_axisbelow(True)
        for row, (m, ms, auroc) in enumerate(sorted(points, key=lambda point: point[2])):
            color, weight = (drawing.OUR_COLOR, "bold") if m.ours else (drawing.INK, "normal")
            marker, size = ("D", 62) if m.ours else ("o", 30)
            axis.scatter([ms], [auroc], marker=marker, s=size, color=color, zorder=3)
            axis.annotate(
                m.title, (ms, auroc), (1.03, (row + 0.5) / len(points)), color=color, fontsize=8.5,
                textcoords="axes fraction", weight=weight, va="center",
                arrowprops={"arrowstyle": "-", "color": drawing.CALM, "lw": 0.5, "shrinkB": 3},
            )  # fmt: skip

    listed = ", ".join(f"{m.title} {quantity(ms)} ms and {auroc:.1f} %" for m, ms, auroc in points)
    return Picture(title, f"Time per image and {title} AUROC: {listed}.", (440, 350), paint)


def against_paper(results: Results) -> Optional[Section]:
    """Measured and published numbers side by side; None if not requested."""
    methods = {m.method: m for m in ranked_methods(results)}
    rows = []
    for row in results.paper:
        m = methods.get(row["method"])
        texts = [m.title if m else row["method"], set_title(row["dataset"])]
        rows.append(([*texts, str(metric(row["metric"]))], row, m is not None and m.ours))
    return paper_section(("Method", "Dataset"), rows, "std") if rows else None


def _about(results: Results) -> Section:
    """The command, the data, the checkpoints, versions and the machine."""
    data, runs = [], []
    for s in results.sets:
        skipped = f", {s.skipped:,} skipped" if s.skipped else ""
        role = _ROLES.get(s.role, s.role)
        data.append((set_title(s.name), f"{role}, {count(s.images, 'sample')}{skipped}"))
    for r in results.runs:
        accuracy = "" if r.accuracy is None else f", {r.accuracy:.2f} % ID accuracy"
        runs.append((r.name, r.checkpoint + accuracy))
    facts = {
        "Data": data,
        "Checkpoints": runs,
        "Versions": [(k, str(v)) for k, v in results.versions.items()],
        "Machine": [
            *((k, one_line(v)) for k, v in results.machine.items()),
            ("created", results.created),
        ],
    }
    return about_section("comparison", results.command, facts)
