"""`nac-openood report`: write the tables and the page of a comparison again."""

from __future__ import annotations

import argparse

from nac_openood.cli.output import complain, open_page, show
from nac_openood.errors import NACError

_EXAMPLES = """\
examples:
  nac-openood report results/cifar10
      write results.csv, results.md and report.html from results.json and the stored scores
  nac-openood report results/cifar10 --open
      the same, then open report.html in a browser

report.html is one self-contained file: it loads nothing from the internet. Its plots need
matplotlib: pip install 'nac-openood[plot]'.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "report",
        help="write the tables and the page of a comparison again",
        description="Write the tables and the self-contained HTML page of a finished or "
        "interrupted comparison.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="DIR", help="the --out folder of nac-openood compare")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.set_defaults(run=_report)


def _report(args: argparse.Namespace) -> int:
    from nac_openood.benchmark.run.results import Results
    from nac_openood.report.terminal import summary_table
    from nac_openood.report.write import write_page, write_tables

    results = Results.load(args.folder)
    written = write_tables(results)
    show(summary_table(results))
    try:
        page = write_page(results)
    except NACError as error:  # the tables are not lost
        show(f"\nWritten to {args.folder}: {', '.join(p.name for p in written)}")
        complain(f"no report.html: {error}")
        return 1
    show(f"\nWritten to {args.folder}: {', '.join(p.name for p in (*written, page))}")
    if args.open:
        open_page(page)
    return 0
