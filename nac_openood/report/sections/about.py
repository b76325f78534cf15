"""What a reader needs to judge the numbers and to make them again."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from nac_openood.compare.results import Results
from nac_openood.report.markup import Html, el, join, scroll_box, section
from nac_openood.report.words import NOTHING, plain, set_title

_ROLES = {
    "id": "in-distribution",
    "csid": "in-distribution, covariate shift",
    "near": "near-OOD",
    "far": "far-OOD",
}


def against_paper(results: Results) -> Optional[Html]:
    """Measured against published numbers."""
    if not results.paper:
        return None
    names = ("Method", "Data set", "Metric", "Measured", "Published", "Difference")
    heads = [el("th", n, scope="col", cls="num" if i > 2 else None) for i, n in enumerate(names)]
    titles = {r.method: r.title for r in results.rows}
    rows = []
    for line in results.paper:
        method, difference = str(line.get("method", "")), line.get("difference")
        shown = f"{difference:+.2f}" if _is_number(difference) else NOTHING
        rows.append(
            el(
                "tr",
                el("th", titles.get(method, method), scope="row"),
                el("td", set_title(str(line.get("dataset", ""))), cls="one-line"),
                el("td", str(line.get("metric", ""))),
                el("td", _mean(line, "measured"), cls="num"),
                el("td", _mean(line, "published"), cls="num"),
                el("td", shown, cls="num"),
            )
        )
    table = el("table", el("thead", el("tr", *heads)), el("tbody", *rows))
    return section(
        "paper", "Measured against published", scroll_box("Measured against published", table)
    )


def about(results: Results) -> Html:
    """Notes, data, checkpoints, versions, machine and the command."""
    notes = [el("li", note) for note in results.notes]
    command = el("pre", el("code", results.command), id="command", tabindex="0")
    return section(
        "about",
        "About this comparison",
        join(el("h3", "Notes"), el("ul", *notes)) if notes else None,
        el("h3", "Command that makes it again"),
        el("div", command, cls="command", data_copy="command"),
        el("div", _data(results), _facts(results), cls="columns"),
    )


def _data(results: Results) -> Html:
    sets = []
    for s in results.sets:
        skipped = f", {s.skipped:,} skipped" if s.skipped else ""
        sets.append(
            (set_title(s.name), f"{_ROLES.get(s.role, s.role)}, {s.images:,} images{skipped}")
        )
    runs = []
    for r in results.runs:
        accuracy = "" if r.accuracy is None else f", {r.accuracy:.2f} % ID accuracy"
        runs.append((r.name, r.checkpoint + accuracy))
    return join(_list("Data", sets), _list("Checkpoints", runs))


def _facts(results: Results) -> Html:
    machine = [(k, plain(v)) for k, v in results.machine.items()]
    versions = [(k, str(v)) for k, v in results.versions.items()]
    return join(
        _list("Versions", versions), _list("Machine", [*machine, ("made", results.created)])
    )


def _list(title: str, entries: list[tuple[str, str]]) -> Html:
    if not entries:
        return Html()
    pairs = [el("div", el("dt", name), el("dd", value)) for name, value in entries]
    return el("div", el("h3", title), el("dl", *pairs))


def _mean(line: Mapping[str, Any], key: str) -> str:
    mean, std = line.get(key), line.get(f"{key}_std")
    if not _is_number(mean):
        return NOTHING
    return f"{mean:.2f}" + (f" \u00b1 {std:.2f}" if _is_number(std) else "")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and value == value
