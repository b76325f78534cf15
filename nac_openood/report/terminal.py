"""The comparison as plain text for a terminal of 100 columns."""

from __future__ import annotations

from textwrap import wrap
from typing import Sequence

from nac_openood.compare.results import Results
from nac_openood.report.order import NAC, measured_groups, standings
from nac_openood.report.words import GROUP_TITLES, number, quantity, verdict

_WIDTH = 100


def summary_table(results: Results) -> str:
    """Near and far AUROC and FPR@95 of every method, best first, NAC marked with an arrow.

    The last line says where NAC stands. No line is longer than 100 columns.
    """
    order, groups = standings(results), measured_groups(results)
    heads = [f"{GROUP_TITLES[g].split('-')[0]} {m}" for g in groups for m in ("AUROC", "FPR@95")]
    lines = [["#", "method", *heads, "ms/image"]]
    worked = [s for s in order if s.status == "ok"]
    for place, s in enumerate(worked, 1):
        cells = [number(s.value(g, m)) for g in groups for m in ("AUROC", "FPR@95")]
        name = f"> {s.title}" if s.method == NAC else f"  {s.title}"
        lines.append([str(place), _fit(name, 20), *cells, quantity(s.times.get("ms_per_image"))])
    text = _aligned(lines)
    text += [_fit(f"    {s.title}: {s.status}, {s.error}") for s in order if s.status != "ok"]
    return "\n".join([*text, "", *wrap(verdict(results, order), _WIDTH)])


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns two spaces apart, numbers to the right, the method's name to the left."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    out = []
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line, widths)]
        cells[1] = line[1].ljust(widths[1])
        out.append(_fit("  ".join(cells)))
    return out


def _fit(text: str, width: int = _WIDTH) -> str:
    line = " ".join(text.splitlines()).rstrip()
    return line if len(line) <= width else line[: width - 1] + "\u2026"
