"""The command line: the only place that prints and sets exit codes."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Optional, Sequence

from nac_openood.__about__ import __version__
from nac_openood.errors import NACError

_EXAMPLES = """\
examples:
  nac-openood demo              train, fit and score on digits, about half a minute
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
    _add_demo(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser("demo", help="see NAC at work on digits and photographs")
    demo.add_argument("--epochs", type=int, default=12, help="of training (default: %(default)s)")
    demo.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    demo.set_defaults(run=_demo)


def _demo(args: argparse.Namespace) -> int:
    from nac_openood.demo import run

    if args.epochs < 1:
        raise NACError(f"--epochs must be at least 1, got {args.epochs}.")
    start = time.perf_counter()
    result = run(args.epochs, args.seed, say=lambda text: print(f"- {text}", flush=True))
    print(f"\nThe network is right on {result.accuracy:.1%} of test digits.\n")
    print(f"{'AUROC, higher is better':26}{'NAC':>8}{'MSP':>8}")
    for name, scores in result.auroc.items():
        print(f"{name:26}{scores['NAC']:8.1%}{scores['MSP']:8.1%}")
    print("\nCalled in-distribution by a detector calibrated to keep 95% of validation digits:")
    for name, share in result.kept.items():
        print(f"{name:26}{share:8.1%}")
    print(f"\nDone in {time.perf_counter() - start:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
