"""Damage inputs and files in many ways, use them, and count what happens.

    python scripts/fuzz.py --cases 1000            # a minute or two; prints a table
    python scripts/fuzz.py --cases 3000 --save     # and writes docs/robustness.md
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

from fuzz_case import GOOD, HANG, SECONDS, Target, attempt  # noqa: E402
from fuzz_targets import TARGETS  # noqa: E402
from templates import rendered  # noqa: E402

from nac_openood.search.output import versions  # noqa: E402

CRASH = "crash"
PAGE = ROOT / "docs" / "robustness.md"


class Tally(NamedTuple):
    """What happened to the cases of a target."""

    target: type[Target]
    verdicts: Counter[str]
    seconds: float


def shares(cases: int, targets: list[type[Target]]) -> dict[type[Target], int]:
    """How many cases each target gets: by weight, at least `cases` together."""
    total = sum(target.weight for target in targets)
    return {target: -(-cases * target.weight // total) for target in targets}


def work(kind: type[Target], folder: Path, seeds: range, results: Any) -> None:
    """Run the cases of a target and send what happened; for a process of its own."""
    torch.set_num_threads(1)
    target = kind(folder)
    results.send(("ready", ""))
    for seed in seeds:
        place = folder.parent / "case"
        results.send(attempt(target, seed, place))
        shutil.rmtree(place, ignore_errors=True)
    results.close()


def outcomes(kind: type[Target], seeds: range) -> Iterator[tuple[int, str, str]]:
    """(seed, verdict, what is told) of every case; a process that dies is started again."""
    context = multiprocessing.get_context("fork")
    while seeds:
        with tempfile.TemporaryDirectory(prefix="nac_fuzz_") as folder:
            (Path(folder) / "target").mkdir()
            ours, theirs = context.Pipe(duplex=False)
            arguments = kind, Path(folder) / "target", seeds, theirs
            process = context.Process(target=work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            try:
                if not ours.poll(600) or ours.recv()[0] != "ready":
                    raise SystemExit(f"{kind.name}: cannot be prepared")
                for seed in list(seeds):
                    if not ours.poll(3 * SECONDS):  # not even the timer could end it
                        yield seed, HANG, "the process does not answer"
                        break
                    yield (seed, *ours.recv())
                    seeds = seeds[1:]
            except EOFError:
                yield seeds[0], CRASH, "the process died"
            process.kill()
            process.join()
        if seeds:
            seeds = seeds[1:]


def run(kind: type[Target], first: int, cases: int) -> Tally:
    """Run a target, and print every case that went wrong."""
    start, found = time.perf_counter(), Counter[str]()
    for seed, verdict, told in outcomes(kind, range(first, first + cases)):
        found[verdict] += 1
        if verdict not in GOOD:
            print(f"\n{kind.name}, case {seed}: {verdict}\n{told}\n", flush=True)
    seconds = time.perf_counter() - start
    print(f"{kind.name:22}{dict(found)}, {seconds:.0f} s", flush=True)
    return Tally(kind, found, seconds)


def render(tallies: list[Tally], total: Counter[str], first: int, requested: int) -> str:
    """The page of the docs."""
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
    counts = shares(args.cases, chosen)
    tallies = [run(target, args.first, n) for target, n in counts.items()]
    total = sum((tally.verdicts for tally in tallies), Counter[str]())
    print(f"{'together':22}{dict(total)}, {sum(total.values())} cases")
    if args.save:
        PAGE.write_text(render(tallies, total, args.first, args.cases), encoding="utf-8")
    return int(any(verdict not in GOOD for verdict in total))


if __name__ == "__main__":
    raise SystemExit(main())
