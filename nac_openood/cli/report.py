"""`nac-openood report`: tables and a page out of what `compare` kept."""

from __future__ import annotations

import argparse
import sys
import webbrowser

from nac_openood.errors import NACError

_EXAMPLES = """\
examples:
  nac-openood report results/cifar10
      write results.csv, results.md and report.html again from results.json and the scores
  nac-openood report results/cifar10 --open
      and show the page

report.html is one file that needs neither network nor server; it wants matplotlib:
pip install 'nac-openood[plot]'.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "report",
        help="tables and a page of a comparison",
        description="Make tables and one self-contained page of the results of a comparison.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="DIR", help="that nac-openood compare --out wrote")
    parser.add_argument("--open", action="store_true", help="show the page in a browser")
    parser.set_defaults(run=_report)


def _report(args: argparse.Namespace) -> int:
    from nac_openood.compare.results import Results
    from nac_openood.report.terminal import summary_table
    from nac_openood.report.write import write_page, write_tables

    results = Results.load(args.folder)
    written = write_tables(results)
    print(summary_table(results))
    try:
        page = write_page(results)
    except NACError as error:  # the tables are not lost
        print(f"\nWritten to {args.folder}: {', '.join(p.name for p in written)}")
        print(f"nac-openood: no report.html: {error}", file=sys.stderr)
        return 1
    print(f"\nWritten to {args.folder}: {', '.join(p.name for p in (*written, page))}")
    if args.open and not webbrowser.open(page.resolve().as_uri()):
        print(f"nac-openood: found no browser; open {page} yourself", file=sys.stderr)
    return 0
