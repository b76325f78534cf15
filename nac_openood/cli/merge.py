"""`nac-openood merge`: shards that ran on their own become what one run would have made."""

from __future__ import annotations

import argparse
from pathlib import Path

from nac_openood.cli import options
from nac_openood.cli.output import results_out
from nac_openood.cli.sharding import is_table, merged_table
from nac_openood.errors import NACError
from nac_openood.files import is_file, is_folder, mode_of

_EXAMPLES = """\
examples:
  nac-openood fit --arch net.py:make --checkpoint net.pt --transform transform.yml \\
      --train birds/train --val birds/val --shard 1/3 --out part1
      the first of three shares of a fit; 2/3 and 3/3 may run elsewhere, at any time
  nac-openood merge part1 part2 part3 --out birds.nac
      the detector that nac-openood fit would have written without --shard, to the bit
  nac-openood score --detector birds.nac --arch net.py:make --checkpoint net.pt photos/ \\
      --shard 1/3 > part1.csv
  nac-openood merge part1.csv part2.csv part3.csv > birds.csv
      the same for a table of scores
  nac-openood merge results/msp_knn results/nac --out results/all
      comparisons on the same data, with different methods or networks, as one

All shards must be made with the same options, on the same data in the same order.
For exit codes see nac-openood --help.
"""


def add(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_command(
        commands, "merge", _merge, epilog=_EXAMPLES,
        help="join shards of fit or score, or comparisons, that ran on their own",
        description="Join the shards of nac-openood fit or nac-openood score, or comparisons: jobs "
        "that ran on different machines or at different times.",
    )  # fmt: skip
    parser.add_argument(
        "shards",
        nargs="+",
        metavar="PART",
        help="all shards of one run, in any order, or folders of comparisons",
    )
    parser.add_argument(
        "--out", metavar="FILE",
        help="what to write (default: detector.nac for shards of fit, stdout for those of score); "
        "for comparisons a folder",
    )  # fmt: skip


def _merge(args: argparse.Namespace) -> int:
    paths = [Path(shard) for shard in args.shards]
    missing = [str(path) for path in paths if not mode_of(path)]
    if missing:
        raise NACError(f"there is no {missing[0]}. Pass what nac-openood wrote with --shard.")
    kinds = {_kind(path) for path in paths}
    if len(kinds) > 1:
        raise NACError(f"these cannot be merged with each other: {', '.join(sorted(kinds))}.")
    return _MERGERS[kinds.pop()](paths, args.out)


def _kind(path: Path) -> str:
    if is_table(path):
        return _TABLE
    if is_folder(path):
        from nac_openood.benchmark.run.results import RESULTS_FILE

        return _COMPARISON if is_file(path / RESULTS_FILE) else _FIT
    raise NACError(
        f"{path} is nothing to merge: expected a folder that nac-openood fit --shard or "
        "nac-openood compare wrote, or a table of nac-openood score --shard."
    )


def _tables(paths: list[Path], out: str | None) -> int:
    # all of it is checked before anything is written
    text = "".join(merged_table(paths)).encode("utf-8", "surrogateescape")
    if out is None:
        results_out().buffer.write(text)
        return 0
    from nac_openood.files import replacing

    with replacing(out) as temporary:
        temporary.write_bytes(text)
    return 0


def _comparisons(paths: list[Path], out: str | None) -> int:
    from nac_openood.benchmark.run.merging import merge_results
    from nac_openood.benchmark.run.results import RESULTS_FILE, Results
    from nac_openood.cli.conducted import publish_results

    if out is None:
        raise NACError("expected --out: the folder of the merged comparison.")
    merged = merge_results([Results.load(path) for path in paths], Path(out))
    publish_results(merged, RESULTS_FILE)
    return 0


def _fits(paths: list[Path], given: str | None) -> int:
    from nac_openood.cli.fit import show_fit
    from nac_openood.detector.shards import merge_shards
    from nac_openood.files import check_target

    out = Path(given or "detector.nac")
    check_target(out)
    merged = merge_shards(paths)
    merged.save(out)
    fitted = merged.fitted
    arch, layers = fitted.notes.get("arch", "network"), ", ".join(fitted.rule.layers)
    show_fit(merged.report, arch, fitted.rule.name, layers, out)
    return 0


_TABLE, _FIT, _COMPARISON = "tables of scores", "shards of a fit", "comparisons"
_MERGERS = {_TABLE: _tables, _FIT: _fits, _COMPARISON: _comparisons}
