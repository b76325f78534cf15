"""`results.md`: the comparison as text, for a README, an issue or a diff."""

from __future__ import annotations

from typing import Iterable, Iterator, Sequence

from nac_openood.compare.results import Results
from nac_openood.report.chosen import chosen, guard_words, nothing_to_choose, search_words
from nac_openood.report.order import NAC, Standing, measured_groups, ood_sets, standings
from nac_openood.report.words import (
    GROUP_TITLES,
    NOTHING,
    number,
    plain,
    quantity,
    set_title,
    settings,
    verdict,
)


def markdown(results: Results) -> str:
    """The whole document."""
    order = standings(results)
    blocks = [
        f"# OOD detection on {_text(set_title(results.id_name))}, {_text(results.arch)}",
        f"**{_text(verdict(results, order))}**",
        _about(results),
        *_summary(results, order),
        *_by_set(results, order),
        *_times(order),
        *_failures(order),
        *_settings(results),
        *_against_paper(results),
        *_end(results),
    ]
    return "\n\n".join(blocks) + "\n"


def _about(results: Results) -> str:
    runs = ", ".join(
        f"{_text(r.name)}" + ("" if r.accuracy is None else f" ({r.accuracy:.2f} % accurate)")
        for r in results.runs
    )
    return (
        f"Percent; mean ± standard deviation over {len(results.runs)} run(s): {runs}. Higher AUROC "
        "and lower FPR@95 are better. Ordered by near-OOD AUROC, else by far-OOD AUROC."
    )


def _summary(results: Results, order: Sequence[Standing]) -> Iterator[str]:
    groups, worked = measured_groups(results), [s for s in order if s.status == "ok"]
    if not groups:
        return
    heads = [f"{GROUP_TITLES[g]} {metric}" for g in groups for metric in ("AUROC", "FPR@95")]
    rows = []
    for place, s in enumerate(worked, 1):
        cells = [number(s.value(g, metric)) for g in groups for metric in ("AUROC", "FPR@95")]
        rows.append([str(place), _name(s), *cells, _text(s.implementation)])
    yield "## Summary"
    yield _table(["#", "method", *heads, "implementation"], rows)


def _by_set(results: Results, order: Sequence[Standing]) -> Iterator[str]:
    names, worked = ood_sets(results), [s for s in order if s.status == "ok"]
    if not names or not worked:
        return
    for metric in ("AUROC", "FPR@95"):
        rows = [[_name(s), *(number(s.value(n, metric)) for n in names)] for s in worked]
        yield f"## {metric} by data set"
        yield _table(["method", *(_text(set_title(n)) for n in names)], rows)


def _times(order: Sequence[Standing]) -> Iterator[str]:
    names = ("setup_seconds", "ms_per_image", "peak_mb")
    timed = [s for s in order if s.times]
    if timed:
        yield "## Times"
        rows = [[_name(s), *(quantity(s.times.get(n)) for n in names)] for s in timed]
        yield _table(["method", "setup, s", "ms per image", "peak MB"], rows)


def _failures(order: Sequence[Standing]) -> Iterator[str]:
    rows = [
        [_name(s), f"{s.runs_ok} of {s.runs}", s.status, _text(s.error)] for s in order if s.error
    ]
    if rows:
        yield "## Without a result"
        yield _table(["method", "runs that worked", "status", "why"], rows)


def _settings(results: Results) -> Iterator[str]:
    rows = []
    for c in chosen(results):
        told = "; ".join(t for t in (search_words(c.search), guard_words(c.search)) if t)
        cells = (c.title, c.runs_text, settings(c.hyperparameters), told)
        rows.append([_text(cell) for cell in cells])
    if rows:
        yield "## Hyperparameters"
        yield _table(["method", "runs", "in use", "search"], rows)
    if nothing_to_choose(results):
        yield f"Without hyperparameters: {_text(', '.join(nothing_to_choose(results)))}."


def _against_paper(results: Results) -> Iterator[str]:
    if results.paper:
        keys = list(dict.fromkeys(k for line in results.paper for k in line))
        yield "## Measured against published"
        yield _table(keys, [[_paper_cell(line.get(k)) for k in keys] for line in results.paper])


def _paper_cell(value: object) -> str:
    if value is None or value != value:
        return NOTHING
    return f"{value:.2f}" if isinstance(value, float) else _text(plain(value))


def _end(results: Results) -> Iterator[str]:
    if results.notes:
        yield "## Notes"
        yield "\n".join(f"- {_text(note)}" for note in results.notes)
    yield "## How to make it again"
    fence = "```"
    while fence in results.command:
        fence += "`"
    yield f"{fence}\n{results.command}\n{fence}"
    facts = {**results.versions, **{k: plain(v) for k, v in results.machine.items()}}
    yield "\n".join(f"- {_text(k)}: {_text(v)}" for k, v in facts.items())


def _name(standing: Standing) -> str:
    title = _text(standing.title)
    return f"**{title}**" if standing.method == NAC else title


def _text(value: object) -> str:
    """One line that neither breaks a table nor starts a tag."""
    line = " ".join(str(value).split())
    for sign, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|")):
        line = line.replace(sign, safe)
    return line


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
