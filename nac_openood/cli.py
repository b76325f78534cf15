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
  nac-openood demo
      train a small network on digits, fit NAC and show what it catches
  nac-openood run scripts/eval_ood.py --id-data cifar10 --postprocessor nac --save-csv \\
      --root results/cifar10_resnet18_32x32_base_e100_lr0.1_default
      OpenOOD's own evaluation script, unmodified, with NAC registered
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
    _add_demo(commands)
    _add_run(commands)
    _add_doctor(commands)
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


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    doctor = commands.add_parser(
        "doctor", help="what is installed, what is missing, and how to mend it"
    )
    doctor.add_argument("--data-root", default="data", help="OpenOOD's data folder (./data)")
    doctor.add_argument("--results-root", default="results", help="of checkpoints (./results)")
    doctor.add_argument("--deep", action="store_true", help="also try to import OpenOOD")
    doctor.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    from nac_openood.plugin.doctor import examine, install_command, render

    findings = examine(data_root=args.data_root, results_root=args.results_root, deep=args.deep)
    print(render(findings))
    command = install_command(findings)
    if command:
        print(f"\nAll of OpenOOD's missing dependencies at once:\n{command}")
    return 1 if any(finding.status == "missing" for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
