"""What a reader needs to judge the numbers and to reproduce them."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from nac_openood.benchmark.run.results import Results, Value
from nac_openood.report.blocks import Cell, Code, Column, Facts, Heading, Line, Section, Table
from nac_openood.report.order import Standing
from nac_openood.report.words import count, is_number, metric, one_line, set_title

_ROLES = {
    "id": "in-distribution",
    "csid": "in-distribution, covariate shift",
    "near": "near-OOD",
    "far": "far-OOD",
}


def against_paper(results: Results, order: Sequence[Standing]) -> Optional[Section]:
    """Measured and published numbers side by side."""
    if not results.paper:
        return None
    known = {s.method: s for s in order}
    columns = [
        Column("Method", "name"), Column("Dataset", "text"), Column("Metric", "text"),
        Column("Measured"), Column("Published"), Column("Difference"),
    ]  # fmt: skip
    lines = []
    for line in results.paper:
        method, difference = str(line.get("method", "")), line.get("difference")
        s = known.get(method)
        texts = (s.title if s else method, set_title(str(line.get("dataset", ""))),
                 str(metric(str(line.get("metric", "")))))  # fmt: skip
        cells = [*map(Cell, texts), _mean(line, "measured"), _mean(line, "published")]
        shown = Cell(f"{difference:+.2f}") if is_number(difference) else Cell()
        lines.append(Line([*cells, shown], ours=s is not None and s.ours))
    table = Table("", columns, lines)
    return Section("paper", "Measured and published results", [table])


def about(results: Results) -> Section:
    """The command, the data, the checkpoints, versions and the machine."""
    return Section(
        "about",
        "About this comparison",
        [
            Heading("Command to reproduce it"),
            Code("command", results.command),
            Facts([(title, pairs) for title, pairs in _facts(results).items() if pairs]),
        ],
    )


def _facts(results: Results) -> dict[str, list[tuple[str, str]]]:
    data, runs = [], []
    for s in results.sets:
        skipped = f", {s.skipped:,} skipped" if s.skipped else ""
        told = f"{_ROLES.get(s.role, s.role)}, {count(s.images, 'sample')}{skipped}"
        data.append((set_title(s.name), told))
    for r in results.runs:
        accuracy = "" if r.accuracy is None else f", {r.accuracy:.2f} % ID accuracy"
        runs.append((r.name, r.checkpoint + accuracy))
    machine = [(k, one_line(v)) for k, v in results.machine.items()]
    return {
        "Data": data,
        "Checkpoints": runs,
        "Versions": [(k, str(v)) for k, v in results.versions.items()],
        "Machine": [*machine, ("created", results.created)],
    }


def _mean(line: Mapping[str, Any], key: str) -> Cell:
    mean: Any = line.get(key)
    std = line.get(f"{key}_std")
    return Cell.of_mean(Value(mean, std if is_number(std) else None) if is_number(mean) else None)
