"""`nac-openood demo`: NAC at work on digits and photographs."""

from __future__ import annotations

import argparse
import time

from nac_openood.errors import NACError


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
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
