"""The command line: the only place that prints and sets exit codes. One file a command."""

from __future__ import annotations

import argparse
import sys
from typing import Optional, Sequence

from nac_openood.__about__ import __version__
from nac_openood.cli import compare, demo, doctor, report, run, search
from nac_openood.errors import NACError

_EXAMPLES = """\
examples:
  nac-openood demo
      train a small network on digits, fit NAC and show what it catches
  nac-openood run scripts/eval_ood.py --id-data cifar10 --postprocessor nac --save-csv \\
      --root results/cifar10_resnet18_32x32_base_e100_lr0.1_default
      OpenOOD's own evaluation script, unmodified, with NAC registered
  nac-openood search --checkpoint best.ckpt --arch resnet18_32x32 --id-data cifar10
      find NAC's settings for a network of yours; see nac-openood search --help
  nac-openood compare --id-data cifar10 --arch resnet18_32x32 --checkpoint best.ckpt
      NAC and 21 baselines: tables and a page with pictures; see nac-openood compare --help
  nac-openood report results/cifar10 --open
      tables and one page of a comparison's results
  nac-openood doctor
      what is installed, what is missing, and the command that mends it
"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run a command and return its exit code: 0 done, 1 an error that is explained, 130 Ctrl-C."""
    args = _parser().parse_args(argv)
    try:
        code: int = args.run(args)
        return code
    except NACError as error:
        print(f"nac-openood: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("nac-openood: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nac-openood",
        description="Neuron Activation Coverage: know when a network's answer cannot be trusted.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (demo, run, search, compare, report, doctor):
        command.add(commands)
    return parser
