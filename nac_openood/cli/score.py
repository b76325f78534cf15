"""`nac-openood score`: a detector file and images become a table on stdout, and nothing else.

A shard of the table (`--shard I/N`) has comments: which shard it is, which batch its rows are of,
and at its end a checksum. `merge_tables` joins all shards.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import heapq
import io
import json
import re
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, Sequence, TextIO

from nac_openood.cli import inputs
from nac_openood.cli.options import DETECTOR, NETWORK_FORMS, command
from nac_openood.cli.output import print_error, results_stream
from nac_openood.distributed import (
    ShardResult,
    as_shard,
    from_main,
    is_main,
    ordered_shards,
    synchronized,
)
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from nac_openood.sources.fitted import Deployed
    from nac_openood.sources.image_paths import Prediction

_FIRST = re.compile(rb"# nac-openood score, shard ([0-9]+)/([0-9]+) of ([0-9a-f]{16})\n")
_BATCH = re.compile(rb"# batch ([0-9]+), ([0-9]+) lines\n")


@command(
    f"""
  paths PATHS...          images, folders (with subfolders, in order), or - for a list on stdin;
      text files for a network of texts
{DETECTOR.strip()}
how to judge:
  --alpha
  --format {{csv,jsonl}} = csv   output (default: %(default)s)
  --skip-bad
  --gallery FILE          write a page with the most suspicious images, HTML
  --batch-size --workers --device --shard
""",
    NETWORK_FORMS,
)
def score_command(args: argparse.Namespace) -> int:
    r"""Judge images with a detector that nac-openood fit wrote; print one line for each image.

    Examples:
      nac-openood score --detector birds.nac --arch net.py:make --checkpoint net.pt photos/ \
          > birds.csv
          judge all images in a folder and its subfolders
      find photos -type f -newer last_run | nac-openood score --detector birds.nac \
          --arch net.py:make --checkpoint net.pt --format jsonl --skip-bad -
          images of a list on stdin, one path per line; bad files are named on stderr
      nac-openood score --detector birds.nac --arch net.py:make --checkpoint net.pt photos/ \
          --gallery suspicious.html > birds.csv
          also a page with the most suspicious images and the reasons

    Columns: path, class (what the network says), confidence (its softmax probability), score
    (higher = more in-distribution), p_value (about a share p of in-distribution images scores this
    low) and decision: 'out' where p_value <= --alpha, else 'in'.
    The transform, and the network if it is found by name alone, are taken from the detector's file.
    Detector and network must belong together; anything else is refused.
    Results go to stdout; bars, warnings and errors to stderr.
    For exit codes see nac-openood --help.
    """
    out = results_stream()
    # whatever else is printed, e.g. by the user's own network, must not get into the table
    with redirect_stdout(sys.stderr), synchronized("judge images"):
        return _score(args, out)


def _score(args: argparse.Namespace, out: TextIO) -> int:
    from nac_openood.detector.outcomes import checked_alpha
    from nac_openood.files import check_target
    from nac_openood.progress import tqdm
    from nac_openood.sources.image_paths import expand, judge_images
    from nac_openood.sources.samples import takes_text

    checked_alpha(args.alpha)
    if args.gallery:
        check_target(Path(args.gallery))  # before the long part, or its result could not be written
    deployed = inputs.detector_of(args)
    texts = takes_text(deployed.transform)
    if args.gallery and (texts or args.shard):
        raise NACError(
            "--gallery shows images, and this detector is one of texts."
            if texts
            else "--gallery needs all images: leave out --shard."
        )
    # listed once: processes that read one stdin would each get a part of it
    paths = from_main("list of files", lambda: expand(_named(args.paths), texts=texts))
    table, suspects = _Table(args, out, paths), _Suspects()
    how = inputs.loading(args)
    share = nullcontext() if args.shard is None else as_shard(args.shard.number - 1, args.shard.of)
    total, hidden = None if args.shard else len(paths), None if is_main() else True
    bar = tqdm(total=total, unit="image", desc="score", disable=hidden, leave=False)
    bad = 0
    with share, bar:
        for answer in judge_images(deployed, paths, alpha=args.alpha, **how):
            bar.update()
            if answer.problem:
                bad += 1
                text = f"cannot read {answer.path} ({answer.problem})"
                if not args.skip_bad:
                    raise NACError(
                        f"{text}. Replace it, or pass `skip_bad=True` to go on without such files."
                    )
                print_error(text)
            elif args.gallery:
                suspects.add(answer)
            table.add(answer)
    table.close()
    if bad:
        print_error(f"left out {bad} of {len(paths)} files, which cannot be read")
    if args.gallery:
        suspects.write(Path(args.gallery), deployed, args.alpha)
    return 0


def _named(paths: Sequence[str]) -> Iterator[str]:
    """The paths, with those on stdin in the place of `-`."""
    for path in paths:
        if path != "-":
            yield path
            continue
        for line in sys.stdin:
            name = line.rstrip("\r\n").removeprefix("\ufeff")  # with which some lists begin
            if name.strip():
                yield name


class _Table:
    """Prints answers as CSV or JSON lines, at once or, as a shard, batch by batch.

    Args:
        args: the options.
        out: where it is printed.
        paths: all images, whatever the shard.
    """

    def __init__(self, args: argparse.Namespace, out: TextIO, paths: Sequence[str]) -> None:
        from nac_openood.sources.image_paths import Prediction

        self._out, self._shard, self._csv = out, args.shard, args.format == "csv"
        self._batch_size = inputs.number(args, "batch_size", 100, 1)
        self._rows, self._answers, self._digest = io.StringIO(), 0, hashlib.sha256()
        if self._shard is not None:
            detector = hashlib.sha256(Path(args.detector).read_bytes()).hexdigest()
            options = (detector, args.alpha, args.format, self._batch_size, args.skip_bad)
            run = hashlib.sha256("\0".join(map(repr, options)).encode())
            for path in paths:
                run.update(b"\0" + path.encode("utf-8", "surrogateescape"))
            self._print(f"# nac-openood score, shard {args.shard.number}/{args.shard.of} of ")
            self._print(f"{run.hexdigest()[:16]}\n")
        if self._csv:
            csv.writer(self._rows, lineterminator="\n").writerow(Prediction("").fields())
        self._print(self._taken())

    def add(self, answer: Prediction) -> None:
        """Print an answer, unless its file could not be read."""
        if not answer.problem:
            if self._csv:
                writer = csv.writer(self._rows, lineterminator="\n")
                writer.writerow(answer.fields().values())
            else:
                self._rows.write(f"{json.dumps(answer.json_fields())}\n")
        self._answers += 1
        if self._shard is None:
            self._print(self._taken())  # whoever reads the other end of a pipe need not wait
        elif self._answers % self._batch_size == 0:
            self._print_batch()

    def close(self) -> None:
        """Print what is left; a shard ends with a checksum."""
        if self._shard is not None:
            if self._answers % self._batch_size:
                self._print_batch()
            self._print(f"# end {self._digest.hexdigest()}\n")

    def _print_batch(self) -> None:
        turn, text = (self._answers - 1) // self._batch_size, self._taken()
        number = turn * self._shard.of + self._shard.number - 1
        self._print(f"# batch {number}, {text.count(chr(10))} lines\n{text}")

    def _print(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
        # of the bytes, since the file may be in any encoding
        encoded = text.encode(self._out.encoding or "utf-8", self._out.errors or "strict")
        self._digest.update(encoded)

    def _taken(self) -> str:
        text = self._rows.getvalue()
        self._rows = io.StringIO()
        return text


def merge_tables(paths: Sequence[Path]) -> bytes:
    """The table that `score` would have printed without `--shard`.

    Raises:
        NACError: a shard is missing, unfinished or of another run.
    """
    shards = ordered_shards(read_shard(path) for path in paths)
    batches = {number: rows for shard in shards for number, rows in shard.content.items()}
    return b"".join(line for number in sorted(batches) for line in batches[number])


def read_shard(path: Path) -> ShardResult:
    """A shard with its lines by batch; those of the header are -1."""
    lines = re.findall(rb"[^\n]*\n", path.read_bytes())
    first = _FIRST.fullmatch(lines[0]) if lines else None
    if first is None:
        raise NACError(
            f"{path} is nothing to merge: expected a folder that nac-openood fit --shard or "
            "nac-openood compare wrote, or a table of nac-openood score --shard."
        )
    at = next((n for n, line in enumerate(lines) if n and line.startswith(b"# ")), len(lines))
    batches = {-1: lines[1:at]}
    while at < len(lines):
        batch = _BATCH.fullmatch(lines[at])
        if batch is None:
            break
        # counted, because a row may look like anything
        end = at + 1 + int(batch[2])
        batches[int(batch[1])] = lines[at + 1 : end]
        at = end
    digest = hashlib.sha256(b"".join(lines[:at])).hexdigest()
    # early versions wrote no checksum
    if lines[at:] not in ([f"# end {digest}\n".encode()], [b"# end\n"]):
        raise NACError(f"{path} is not whole, or was changed. Run this shard again.")
    return ShardResult(path, int(first[1]), int(first[2]), first[3], batches)


class _Suspects:
    """Keeps the images with the lowest scores, and writes a page about them."""

    def __init__(self, most: int = 24) -> None:
        self._most, self._n_images, self._n_out = most, 0, 0
        self._kept: list[tuple[float, int, Prediction]] = []

    def add(self, answer: Prediction) -> None:
        """Keep an image if it is one of the most suspicious so far."""
        self._n_images += 1
        self._n_out += answer.is_out
        if answer.score == answer.score:  # nothing can be explained about NaN
            # of equal scores, the first are kept
            heapq.heappush(self._kept, (-answer.score, -self._n_images, answer))
            if len(self._kept) > self._most:
                heapq.heappop(self._kept)

    def write(self, path: Path, deployed: Deployed, alpha: float) -> None:
        """Read the kept images again, and explain them."""
        from nac_openood.files import write_text
        from nac_openood.report.gallery import Suspect, suspects_page
        from nac_openood.sources.images import ImageError, png_url, rgb_image, small_png

        found = []
        for _, _, answer in sorted(self._kept, reverse=True):
            try:
                picture = rgb_image(Path(answer.path))
            except ImageError:  # it cannot be read any more
                continue
            why = deployed.detector.explain(deployed.transform(picture)[None], top=5)[0]
            found.append(Suspect(answer, png_url(small_png(picture)), why))
        arch = deployed.detector.notes_.get("arch", type(deployed.detector.net).__name__)
        counts = {"n_images": self._n_images, "n_out": self._n_out}
        write_text(path, suspects_page(found, arch=arch, alpha=alpha, **counts))
        print_error(f"written to {path}: the {len(found)} most suspicious images")
