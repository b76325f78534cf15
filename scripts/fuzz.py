"""Damage inputs and files in many ways, use them, and count what happens.

    python scripts/fuzz.py --cases 1000            # a minute or two; prints a table
    python scripts/fuzz.py --cases 3000 --save     # and writes benchmarks/notes/robustness.md
    python scripts/fuzz.py --only config --from 53 --cases 1   # one case again, with its traceback

What is tried is in `tests/fuzz_targets.py`. Every target runs in a process of its own, which is
started again if it crashes. The exit code is 1 if anything went wrong.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Iterator, NamedTuple

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from fuzz_case import GOOD, HANG, SECONDS, Outcome, Target, attempt  # noqa: E402
from fuzz_targets import TARGETS  # noqa: E402
from templates import rendered  # noqa: E402

from nac_openood.tensor_files import versions  # noqa: E402

CRASH = "crash"
PAGE = ROOT / "benchmarks" / "notes" / "robustness.md"


class Tally(NamedTuple):
    """What happened to the cases of a target."""

    target: Target
    verdicts: Counter[str]
    seconds: float


def work(target: Target, folder: Path, seeds: range, results: Any) -> None:
    """Run the cases of a target and send what happened; for a process of its own."""
    torch.set_num_threads(1)
    case = target.prepare(folder)
    for seed in seeds:
        results.send(attempt(target.name, case, seed, folder.parent / "case"))
        shutil.rmtree(folder.parent / "case", ignore_errors=True)
    results.close()


def outcomes(target: Target, seeds: range) -> Iterator[tuple[int, Outcome]]:
    """Seed and outcome of every case; a process that dies is started again."""
    context = multiprocessing.get_context("fork")
    while seeds:
        with tempfile.TemporaryDirectory(prefix="nac_fuzz_") as folder:
            (Path(folder) / "target").mkdir()
            receiver, sender = context.Pipe(duplex=False)
            arguments = target, Path(folder) / "target", seeds, sender
            process = context.Process(target=work, args=arguments, daemon=True)
            process.start()
            sender.close()
            for seed in list(seeds):
                try:
                    answered = receiver.poll(3 * SECONDS)  # longer than the timer of a case
                    late = Outcome(HANG, "the process does not answer")
                    outcome = receiver.recv() if answered else late
                except EOFError:
                    outcome = Outcome(CRASH, "the process died")
                yield seed, outcome
                seeds = seeds[1:]
                if outcome.verdict == CRASH or not answered:
                    break
            process.kill()
            process.join()


def run(target: Target, first: int, cases: int) -> Tally:
    """Run a target, and print every case that went wrong."""
    start, found = time.perf_counter(), Counter[str]()
    for seed, (verdict, details) in outcomes(target, range(first, first + cases)):
        found[verdict] += 1
        if verdict not in GOOD:
            print(f"\n{target.name}, case {seed}: {verdict}\n{details}\n", flush=True)
    seconds = time.perf_counter() - start
    print(f"{target.name:22}{dict(found)}, {seconds:.0f} s", flush=True)
    return Tally(target, found, seconds)


def render(tallies: list[Tally], total: Counter[str], first: int, requested: int) -> str:
    """The page."""
    return rendered(
        "robustness.md.j2", tallies=tallies, total=total, first=first, requested=requested,
        cases=sum(total.values()), seconds=sum(tally.seconds for tally in tallies),
        versions=versions(), limit=SECONDS,
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000, help="at least so many in all")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="SEED")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="targets, by name")
    parser.add_argument("--save", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    args = parser.parse_args()
    chosen = [t for t in TARGETS if not args.only or t.name in args.only]
    total_weight = sum(target.weight for target in chosen)
    tallies = [run(t, args.first, -(-args.cases * t.weight // total_weight)) for t in chosen]
    total = sum((tally.verdicts for tally in tallies), Counter[str]())
    print(f"{'together':22}{dict(total)}, {sum(total.values())} cases")
    if args.save:
        PAGE.write_text(render(tallies, total, args.first, args.cases), encoding="utf-8")
    return int(any(verdict not in GOOD for verdict in total))


if __name__ == "__main__":
    raise SystemExit(main())
