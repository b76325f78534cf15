"""`nac-openood report`: write the tables and the page of a comparison again."""

from __future__ import annotations

import argparse

from nac_openood.cli import options
from nac_openood.cli.conducted import publish_results
from nac_openood.cli.output import open_page

_EXAMPLES = """\
examples:
  nac-openood report results/cifar10
      write results.csv, results.md and report.html from results.json and the stored scores
  nac-openood report results/cifar10 --open
      the same, then open report.html in a browser

report.html is one self-contained file: it loads nothing from the internet. Its plots need
matplotlib: pip install 'nac-openood[plot]'.
"""


def add(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_command(
        commands, "report", _report, epilog=_EXAMPLES,
        help="write the tables and the page of a comparison again",
        description="Write the tables and the self-contained HTML page of a finished or "
        "interrupted comparison.",
    )  # fmt: skip
    parser.add_argument("folder", metavar="DIR", help="the --out folder of nac-openood compare")
    options.add(parser, "--open")


def _report(args: argparse.Namespace) -> int:
    from nac_openood.benchmark.run.results import Results

    page = publish_results(Results.load(args.folder))
    open_page(page, args.open)
    return 0 if page is not None else 1
