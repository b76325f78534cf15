"""`nac-openood doctor`: what is installed and what is missing."""

from __future__ import annotations

import argparse


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
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
