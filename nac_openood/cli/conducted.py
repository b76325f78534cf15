"""A comparison in a terminal: what is printed, what is written, and the exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Callable, Optional

from nac_openood.cli.output import complain, interrupted, open_page, publish
from nac_openood.distributed import is_main, single_process

if TYPE_CHECKING:
    from nac_openood.benchmark.run.results import Results


def carry_out(out: Path, run: Callable[[], Results], *, show_page: bool = False) -> int:
    """Run a comparison, write and show its tables, and return the exit code.

    Args:
        out: the folder of the results, in which those of an interrupted run are found.
        run: makes the comparison.
        show_page: whether to open the page in a browser.
    """
    from nac_openood.benchmark.run.results import RESULTS_FILE, Results

    try:
        results = run()
    except KeyboardInterrupt:
        if (out / RESULTS_FILE).is_file():
            publish_results(Results.load(out), RESULTS_FILE)
        return interrupted(out)
    open_page(publish_results(results, RESULTS_FILE), show_page)
    failed = sorted({row.title for row in results.rows if row.status == "failed"})
    if failed:
        complain(f"failed: {', '.join(failed)} (see the table)")
    return 2 if failed else 0


def publish_results(results: Results, *more: str) -> Optional[Path]:
    """Show the tables of a comparison and write them, and the page if there is matplotlib.

    Where several processes work together, only the first one does this.

    Args:
        results: the comparison.
        more: names of other files that were written beside them.

    Returns:
        The page, or None.
    """
    from nac_openood.report.terminal import summary_table
    from nac_openood.report.write import write_page, write_tables

    if not is_main():
        return None
    with single_process():
        return publish(
            results.folder,
            summary_table(results),
            lambda: [*(results.folder / name for name in more), *write_tables(results)],
            "report.html",
            lambda: [write_page(results)],
        )
