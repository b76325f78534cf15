"""`nac-openood run` and `doctor`: OpenOOD's own scripts, and what they need."""

from __future__ import annotations

import argparse

from nac_openood.cli.options import command
from nac_openood.cli.output import show


@command(
    """
  --no-compat             do not apply the patches that OpenOOD needs on NumPy 2 and without a GPU
  script SCRIPT           e.g. scripts/eval_ood.py
  args ARGS: rest         arguments of the script
"""
)
def run_command(args: argparse.Namespace) -> int:
    r"""Run an unmodified script of OpenOOD with NAC registered, and return its exit code.

    The script may be scripts/eval_ood.py, scripts/eval_ood_imagenet.py or main.py. It can use the
    postprocessors 'nac' and 'nac_plus'. Everything after SCRIPT is passed to the script.
    Change to the folder of your OpenOOD clone first.

    Examples:
      nac-openood run scripts/eval_ood.py --id-data cifar10 --postprocessor nac --save-csv \
          --root results/cifar10_resnet18_32x32_base_e100_lr0.1_default
      nac-openood run scripts/eval_ood_imagenet.py --tvs-pretrained --arch resnet50 \
          --postprocessor nac --save-csv
    """
    from nac_openood.plugin.register import run_script

    return run_script(args.script, args.args, compat=args.compat)


@command(
    """
  --data-root DIR = data          folder with OpenOOD's benchmarks (default: ./%(default)s)
  --results-root DIR = results    folder with checkpoints (default: ./%(default)s)
  --deep                          also import OpenOOD (some seconds)
"""
)
def doctor_command(args: argparse.Namespace) -> int:
    """Check everything that NAC inside OpenOOD needs. Nothing is changed.

    Examples:
      nac-openood doctor
          check Python, torch, OpenOOD, its dependencies, its data and its checkpoints
      nac-openood doctor --deep
          also import OpenOOD, the surest test of its dependencies
    """
    from nac_openood.plugin.doctor import MISSING, checks_text, examine

    checks = examine(data_root=args.data_root, results_root=args.results_root, deep=args.deep)
    show(checks_text(checks))
    return 1 if any(check.status == MISSING for check in checks) else 0
