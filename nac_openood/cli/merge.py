"""`nac-openood merge`: join shards into the result of one run."""

from __future__ import annotations

import argparse
from pathlib import Path

from nac_openood.cli.options import command
from nac_openood.cli.output import results_stream
from nac_openood.errors import NACError

_TABLES, _FITS, _COMPARISONS = "tables of scores", "shards of a fit", "comparisons"


@command(
    """
  shards PART...          all shards of one run, in any order, or folders of comparisons
  --out FILE              what to write (default: detector.nac for shards of fit, stdout for those
      of score); for comparisons a folder
"""
)
def merge_command(args: argparse.Namespace) -> int:
    r"""Join the shards of nac-openood fit or nac-openood score, or comparisons.

    These are jobs that ran on different machines or at different times.

    Examples:
      nac-openood fit --arch net.py:make --checkpoint net.pt --transform transform.yml \
          --train birds/train --val birds/val --shard 1/3 --out part1
          the first of three shards of a fit; 2/3 and 3/3 may run elsewhere, at any time
      nac-openood merge part1 part2 part3 --out birds.nac
          exactly the detector that nac-openood fit would have written without --shard
      nac-openood score --detector birds.nac --arch net.py:make --checkpoint net.pt photos/ \
          --shard 1/3 > part1.csv
      nac-openood merge part1.csv part2.csv part3.csv > birds.csv
          the same for a table of scores
      nac-openood merge results/msp_knn results/nac --out results/all
          comparisons on the same data, with different methods or networks, as one

    All shards must be made with the same options, on the same data in the same order.
    For exit codes see nac-openood --help.
    """
    paths = [Path(shard) for shard in args.shards]
    kinds = {_kind(path) for path in paths}
    if len(kinds) > 1:
        raise NACError(f"these cannot be merged with each other: {', '.join(sorted(kinds))}.")
    mergers = {_TABLES: _tables, _FITS: _fits, _COMPARISONS: _comparisons}
    return mergers[kinds.pop()](paths, args.out)


def _kind(path: Path) -> str:
    from nac_openood.benchmark.run.results import RESULTS_FILE
    from nac_openood.cli.score import read_shard

    if not path.exists():
        raise NACError(f"there is no {path}. Pass what nac-openood wrote with --shard.")
    if not path.is_dir():
        read_shard(path)  # raises if it is not a table
        return _TABLES
    return _COMPARISONS if (path / RESULTS_FILE).is_file() else _FITS


def _tables(paths: list[Path], out: str | None) -> int:
    from nac_openood.cli.score import merge_tables
    from nac_openood.files import replacing

    merged = merge_tables(paths)  # checks everything before anything is written
    if out is None:
        results_stream().buffer.write(merged)
        return 0
    with replacing(out) as temporary:
        temporary.write_bytes(merged)
    return 0


def _comparisons(paths: list[Path], out: str | None) -> int:
    from nac_openood.benchmark.run.results import RESULTS_FILE, Results, merge_results
    from nac_openood.cli.compare import publish_results

    if out is None:
        raise NACError("expected --out: the folder of the merged comparison.")
    merged = merge_results([Results.load(path) for path in paths], Path(out))
    publish_results(merged, RESULTS_FILE)
    return 0


def _fits(paths: list[Path], out: str | None) -> int:
    from nac_openood.cli.fit import show_fit
    from nac_openood.detector.checked_fit import merge_shards
    from nac_openood.files import check_target

    path = Path(out or "detector.nac")
    check_target(path)
    fitted, report = merge_shards(paths)
    fitted.save(path)
    arch, layers = fitted.notes.get("arch", "network"), ", ".join(fitted.rule.layers)
    show_fit(report, arch, fitted.rule.name, layers, path)
    return 0
