"""Tables and page of a ranking, written beside its `results.json`."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap

from nac_openood import files
from nac_openood.evaluation.leave_one_out import RankedRuns
from nac_openood.report.markdown import render_markdown
from nac_openood.report.ranked.document import ranked_document, ranking_verdict
from nac_openood.report.ranked.tables import choice_table, ranked_csv, settings_table
from nac_openood.report.terminal import text_table


def write_ranked_tables(ranked: RankedRuns, folder: Path) -> list[Path]:
    """Write `results.csv` and `results.md`; neither needs matplotlib."""
    return [
        files.write_text(folder / "results.csv", ranked_csv(ranked)),
        files.write_text(folder / "results.md", render_markdown(ranked_document(ranked))),
    ]


def write_ranked_page(ranked: RankedRuns, folder: Path) -> Path:
    """Write `report.html`.

    Raises:
        NACError: if matplotlib is not installed.
    """
    from nac_openood.report.page import render

    return files.write_text(folder / "report.html", render(ranked_document(ranked)))


def ranked_summary(ranked: RankedRuns) -> str:
    """The tables as plain text for a terminal of 100 columns."""
    tables = [choice_table(ranked)] if ranked.has_test else []
    lines = [
        line for table in (*tables, settings_table(ranked)) for line in (*text_table(table), "")
    ]
    texts = [ranking_verdict(ranked), *(f"Note: {note}" for note in ranked.notes)]
    return "\n".join([*lines, *(line for text in texts for line in wrap(text, 100))])
