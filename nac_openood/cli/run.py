"""`nac-openood run`: OpenOOD's own scripts with NAC registered."""

from __future__ import annotations

import argparse


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    run = commands.add_parser(
        "run",
        help="run one of OpenOOD's own scripts with NAC registered",
        usage="nac-openood run [--no-compat] SCRIPT [ARGS...]",
        description="Run an unmodified script of OpenOOD (scripts/eval_ood.py, "
        "scripts/eval_ood_imagenet.py, main.py) with the postprocessor 'nac' registered. "
        "Everything after SCRIPT goes to the script; its exit code is ours.",
    )
    run.add_argument(
        "--no-compat",
        dest="compat",
        action="store_false",
        help="do not apply what OpenOOD needs on NumPy 2 and on machines without a GPU",
    )
    run.add_argument("script", metavar="SCRIPT", help="e.g. scripts/eval_ood.py")
    run.add_argument("args", metavar="ARGS", nargs=argparse.REMAINDER, help="passed through")
    run.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from nac_openood.plugin.launch import run_script

    return run_script(args.script, args.args, compat=args.compat)
