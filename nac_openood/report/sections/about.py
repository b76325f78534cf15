"""What a reader needs to judge the numbers and to reproduce them."""

from __future__ import annotations

from typing import Mapping, Sequence

from nac_openood.benchmark.run.results import Results
from nac_openood.report.blocks import Code, Facts, Heading, Section
from nac_openood.report.words import count, one_line, set_title

_ROLES = {
    "id": "in-distribution",
    "csid": "in-distribution, covariate shift",
    "near": "near-OOD",
    "far": "far-OOD",
}


def about(results: Results) -> Section:
    """The command, the data, the checkpoints, versions and the machine."""
    return about_section("comparison", results.command, _facts(results))


def about_section(
    what: str, command: str, facts: Mapping[str, Sequence[tuple[str, str]]]
) -> Section:
    """The section that tells how to repeat something.

    Args:
        what: e.g. "comparison".
        command: repeats it.
        facts: names and values by heading; empty ones are left out.
    """
    return Section(
        "about",
        f"About this {what}",
        [
            Heading("Command to reproduce it"),
            Code("command", command),
            Facts([(title, pairs) for title, pairs in facts.items() if pairs]),
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
