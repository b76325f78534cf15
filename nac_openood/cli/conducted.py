"""A comparison in a terminal: what is printed, what is written, and the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Optional

from nac_openood.cli.output import complain, show
from nac_openood.errors import FileError, NACError

if TYPE_CHECKING:
    from pathlib import Path

    from nac_openood.benchmark.run.results import Results


def carry_out(out: Path, run: Callable[[], Results]) -> int:
    """Run a comparison, write and show its tables, and return the exit code.

    Args:
        out: the folder of the results, in which those of an interrupted run are found.
        run: makes the comparison.
    """
    from nac_openood.benchmark.run.results import DOCUMENT, Results

    try:
        results = run()
    except KeyboardInterrupt:
        if (out / DOCUMENT).is_file():
            publish(Results.load(out), DOCUMENT)
        complain(
            f"interrupted. What was finished is in {out}; run the same command again to continue "
            "from there."
        )
        return 130
    publish(results, DOCUMENT)
    failed = sorted({row.title for row in results.rows if row.status == "failed"})
    if failed:
        complain(f"failed: {', '.join(failed)} (see the table)")
    return 2 if failed else 0


def publish(results: Results, *more: str) -> Optional[Path]:
    """Show the tables of a comparison and write them, and the page if there is matplotlib.

    Args:
        results: the comparison.
        more: names of other files that were written beside them.

    Returns:
        The page, or None.
    """
    from nac_openood.report.terminal import summary_table
    from nac_openood.report.write import write_page, write_tables

    show(f"\n{summary_table(results)}\n")
    written, page = write_tables(results), None
    try:
        page = write_page(results)
    except FileError:
        raise
    except NACError as error:  # the tables are not lost
        complain(f"no report.html: {error}")
    names = [*more, *(path.name for path in (*written, page) if path is not None)]
    show(f"Written to {results.folder}: {', '.join(names)}")
    return page
