"""`nac-openood doctor`: show what is installed, what is missing and how to fix it."""

from __future__ import annotations

import argparse

from nac_openood.cli import options
from nac_openood.cli.output import show

_EXAMPLES = """\
examples:
  nac-openood doctor
      check Python, torch, OpenOOD, its dependencies, its data and its checkpoints
  nac-openood doctor --deep
      also import OpenOOD, the surest test of its dependencies
"""


def add(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_command(
        commands, "doctor", _doctor, epilog=_EXAMPLES,
        help="show what is installed, what is missing and how to fix it",
        description="Check everything that NAC inside OpenOOD needs. Nothing is changed.",
    )  # fmt: skip
    parser.add_argument(
        "--data-root", default="data", metavar="DIR",
        help="folder with OpenOOD's benchmarks (default: ./%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--results-root", default="results", metavar="DIR",
        help="folder with checkpoints (default: ./%(default)s)",
    )  # fmt: skip
    parser.add_argument("--deep", action="store_true", help="also import OpenOOD (some seconds)")


def _doctor(args: argparse.Namespace) -> int:
    from nac_openood.plugin.doctor import MISSING, checks_text, examine

    checks = examine(data_root=args.data_root, results_root=args.results_root, deep=args.deep)
    show(checks_text(checks))
    return 1 if any(check.status == MISSING for check in checks) else 0
