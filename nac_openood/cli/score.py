"""`nac-openood score`: judge images with a detector; stdout gets a table and nothing else.

A shard of the table (`--shard I/N`) has comments: the number of the shard, the batch of the rows
that follow, and a checksum at the end. `merge_tables` joins all shards.
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
from collections import Counter
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Sequence, TextIO

from nac_openood.cli import inputs
from nac_openood.cli.options import DETECTOR, command
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
    from nac_openood.sources.fitted import Pipeline, Prediction

_FIRST = re.compile(rb"# nac-openood score, shard ([0-9]+)/([0-9]+) of ([0-9a-f]{16})\n")
#: Number of images on the page of --gallery.
_IN_GALLERY = 24
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
    inputs.NETWORK_FORMS,
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
    # other output, e.g. of the user's own network, must not get into the table
    with redirect_stdout(sys.stderr), synchronized("judge images"):
        return _score(args, out)


def _score(args: argparse.Namespace, out: TextIO) -> int:
    from nac_openood.detector.batches import tqdm
    from nac_openood.detector.outcomes import checked_alpha
    from nac_openood.files import check_target
    from nac_openood.sources.fitted import expand, judge_images
    from nac_openood.sources.transforms import takes_text

    checked_alpha(args.alpha)
    if args.gallery:
        check_target(Path(args.gallery))  # before the slow part, so that it can be written
    if args.gallery and args.shard:
        raise NACError("--gallery needs all images: leave out --shard.")
    pipeline = inputs.detector_of(args)
    texts = takes_text(pipeline.transform)
    if args.gallery and texts:
        raise NACError("--gallery shows images, and this detector is one of texts.")
    # in one process: several would each read a part of stdin
    paths = from_main("list of files", lambda: expand(_named(args.paths), texts=texts))
    table, counts = _Table(args, out, paths), Counter[str]()
    total, hidden = None if args.shard else len(paths), None if is_main() else True

    def printed() -> Iterator[Prediction]:
        found = judge_images(pipeline, paths, alpha=args.alpha, **inputs.loading(args))
        for answer in tqdm(found, "score", total, False, unit="image", disable=hidden):
            counts["bad" if answer.problem else "out" if answer.is_out else "in"] += 1
            if answer.problem:
                text = f"cannot read {answer.path} ({answer.problem})"
                if not args.skip_bad:
                    raise NACError(
                        f"{text}. Replace it, or pass `skip_bad=True` to go on without such files."
                    )
                print_error(text)
            table.add(answer)
            yield answer

    share = nullcontext() if args.shard is None else as_shard(args.shard.number - 1, args.shard.of)
    with share:
        # nothing can be explained about NaN
        explainable = (a for a in printed() if not a.problem and a.score == a.score)
        suspects = heapq.nsmallest(_IN_GALLERY, explainable, key=lambda answer: answer.score)
    table.close()
    if counts["bad"]:
        print_error(f"left out {counts['bad']} of {len(paths)} files, which cannot be read")
    if args.gallery:
        sizes = {"n_images": counts["in"] + counts["out"], "n_out": counts["out"]}
        _write_gallery(Path(args.gallery), suspects, pipeline, alpha=args.alpha, **sizes)
    return 0


def _named(paths: Sequence[str]) -> Iterator[str]:
    """The paths, with `-` replaced by the paths on stdin."""
    for path in paths:
        if path != "-":
            yield path
            continue
        for line in sys.stdin:
            name = line.rstrip("\r\n").removeprefix("\ufeff")  # a byte order mark
            if name.strip():
                yield name


class _Table:
    """Prints predictions as CSV or JSON lines, one by one or, for a shard, batch by batch.

    Args:
        args: the options.
        out: the stream to print to.
        paths: all images, not only those of the shard.
    """

    def __init__(self, args: argparse.Namespace, out: TextIO, paths: Sequence[str]) -> None:
        from nac_openood.sources.fitted import Prediction

        self._out, self._shard, self._csv = out, args.shard, args.format == "csv"
        self._batch_size = inputs.number(args, "batch_size", 100, 1)
        self._rows, self._answers, self._digest = "", 0, hashlib.sha256()
        header = _csv_row(Prediction("").fields()) if self._csv else ""
        if self._shard is not None:
            detector = hashlib.sha256(Path(args.detector).read_bytes()).hexdigest()
            options = (detector, args.alpha, args.format, self._batch_size, args.skip_bad)
            run = hashlib.sha256("\0".join(map(repr, options)).encode())
            for path in paths:
                run.update(b"\0" + path.encode("utf-8", "surrogateescape"))
            shard = f"shard {self._shard.number}/{self._shard.of} of {run.hexdigest()[:16]}"
            header = f"# nac-openood score, {shard}\n{header}"
        self._print(header)

    def add(self, answer: Prediction) -> None:
        """Print an answer, unless its file could not be read."""
        if not answer.problem:
            row = answer.fields().values() if self._csv else answer.json_fields()
            self._rows += _csv_row(row) if self._csv else f"{json.dumps(row)}\n"
        self._answers += 1
        if self._shard is None:
            self._print(self._rows)  # at once, for the reader of a pipe
            self._rows = ""
        elif self._answers % self._batch_size == 0:
            self._print_batch()

    def close(self) -> None:
        """Print what is left; a shard ends with a checksum."""
        if self._shard is not None:
            if self._answers % self._batch_size:
                self._print_batch()
            self._print(f"# end {self._digest.hexdigest()}\n")

    def _print_batch(self) -> None:
        turn = (self._answers - 1) // self._batch_size
        number, lines = turn * self._shard.of + self._shard.number - 1, self._rows.count("\n")
        self._print(f"# batch {number}, {lines} lines\n{self._rows}")
        self._rows = ""

    def _print(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
        # the bytes, because stdout may have any encoding
        encoded = text.encode(self._out.encoding or "utf-8", self._out.errors or "strict")
        self._digest.update(encoded)


def _csv_row(values: Iterable[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


def merge_tables(paths: Sequence[Path]) -> bytes:
    """The table that `score` would have printed without `--shard`.

    Raises:
        NACError: a shard is missing, unfinished or of another run.
    """
    shards = ordered_shards(read_shard(path) for path in paths)
    batches = {number: rows for shard in shards for number, rows in shard.content.items()}
    return b"".join(line for number in sorted(batches) for line in batches[number])


def read_shard(path: Path) -> ShardResult:
    """Read a shard: its lines by batch, and the header as batch -1."""
    lines = re.findall(rb"[^\n]*\n", path.read_bytes())
    first = _FIRST.fullmatch(lines[0]) if lines else None
    if first is None:
        raise NACError(
            f"{path} cannot be merged: expected a folder that nac-openood fit --shard or "
            "nac-openood compare wrote, or a table of nac-openood score --shard."
        )
    at = next((n for n, line in enumerate(lines) if n and line.startswith(b"# ")), len(lines))
    batches = {-1: lines[1:at]}
    while at < len(lines):
        batch = _BATCH.fullmatch(lines[at])
        if batch is None:
            break
        # by number, because a row may look like a comment
        end = at + 1 + int(batch[2])
        batches[int(batch[1])] = lines[at + 1 : end]
        at = end
    digest = hashlib.sha256(b"".join(lines[:at])).hexdigest()
    # early versions wrote no checksum
    if lines[at:] not in ([f"# end {digest}\n".encode()], [b"# end\n"]):
        raise NACError(f"{path} is incomplete or was changed. Run this shard again.")
    return ShardResult(path, int(first[1]), int(first[2]), first[3], batches)


def _write_gallery(
    path: Path, suspects: Sequence[Prediction], pipeline: Pipeline, **about: Any
) -> None:
    """Read the most suspicious images again, explain them and write a page."""
    from nac_openood.files import write_text
    from nac_openood.report.gallery import suspects_page
    from nac_openood.sources.images import ImageError, png_url, rgb_image, small_png

    found = []
    for answer in suspects:
        try:
            picture = rgb_image(Path(answer.path))
        except ImageError:  # it was removed or changed
            continue
        why = pipeline.detector.explain(pipeline.transform(picture)[None], top=5)[0]
        found.append((answer, png_url(small_png(picture)), why))
    arch = pipeline.detector.notes_.get("arch", type(pipeline.detector.net).__name__)
    write_text(path, suspects_page(found, arch=arch, **about))
    print_error(f"written to {path}: the {len(found)} most suspicious images")
