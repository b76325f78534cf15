"""`nac-openood run`: run OpenOOD's own scripts with NAC registered."""

from __future__ import annotations

import argparse

from nac_openood.cli import options

_EXAMPLES = """\
examples (in the folder of your OpenOOD clone):
  nac-openood run scripts/eval_ood.py --id-data cifar10 --postprocessor nac --save-csv \\
      --root results/cifar10_resnet18_32x32_base_e100_lr0.1_default
  nac-openood run scripts/eval_ood_imagenet.py --tvs-pretrained --arch resnet50 \\
      --postprocessor nac --save-csv
"""


def add(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_command(
        commands, "run", _run, epilog=_EXAMPLES,
        help="run one of OpenOOD's own scripts with NAC registered",
        usage="nac-openood run [--no-compat] SCRIPT [ARGS...]",
        description="Run an unmodified script of OpenOOD (scripts/eval_ood.py, "
        "scripts/eval_ood_imagenet.py, main.py) with the postprocessors 'nac' and 'nac_plus' "
        "registered, and return its exit code. Everything after SCRIPT is passed to the script.",
    )  # fmt: skip
    parser.add_argument(
        "--no-compat",
        dest="compat",
        action="store_false",
        help="do not apply the patches that OpenOOD needs on NumPy 2 and without a GPU",
    )
    parser.add_argument("script", metavar="SCRIPT", help="e.g. scripts/eval_ood.py")
    parser.add_argument(
        "args", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script"
    )


def _run(args: argparse.Namespace) -> int:
    from nac_openood.plugin.launch import run_script

    return run_script(args.script, args.args, compat=args.compat)
