"""`nac-openood score`: judge images with a detector; stdout gets a table and nothing else.

`merge_tables` joins shards of the table, which `--shard I/N` prints.
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

from nac_openood import distributed
from nac_openood.cli import inputs
from nac_openood.cli.options import DETECTOR, command
from nac_openood.cli.output import print_error, results_stream
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from nac_openood.sources.fitted import Pipeline, Prediction

_FIRST = re.compile(rb"# nac-openood score, shard ([0-9]+)/([0-9]+) of ([0-9a-f]{16})\n")
# version 0.1 also wrote the number of lines that follow
_BATCH = re.compile(rb"^# batch ([0-9]+)(?:, [0-9]+ lines)?\n", re.MULTILINE)
#: Number of images on the page of --gallery.
_IN_GALLERY = 24


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
    with redirect_stdout(sys.stderr), distributed.synchronized("judge images"):
        _score(args, out)
    return 0


def _score(args: argparse.Namespace, out: TextIO) -> None:
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
    paths = distributed.from_main("files", lambda: expand(_named(args.paths), texts=texts))
    counts = Counter[str]()

    def readable(answers: Iterable[Prediction]) -> Iterator[Prediction]:
        for answer in answers:
            counts["bad" if answer.problem else answer.decision] += 1
            if not answer.problem:
                yield answer
                continue
            text = f"cannot read {answer.path} ({answer.problem})"
            if not args.skip_bad:
                raise NACError(
                    f"{text}. Replace it, or pass `skip_bad=True` to go on without such files."
                )
            print_error(text)

    number, of = args.shard or (1, 1)
    with distributed.as_shard(number - 1, of) if args.shard else nullcontext():
        found = judge_images(pipeline, paths, alpha=args.alpha, **inputs.loading(args))
        total, hidden = None if args.shard else len(paths), None if distributed.is_main() else True
        bar = tqdm(found, "score", total, False, unit="image", disable=hidden)
        printed = readable(_printed(bar, args, out, paths))
        # nothing can be explained about NaN
        explainable = (answer for answer in printed if answer.score == answer.score)
        suspects = heapq.nsmallest(_IN_GALLERY, explainable, key=lambda answer: answer.score)
    if counts["bad"]:
        print_error(f"left out {counts['bad']} of {len(paths)} files, which cannot be read")
    if args.gallery:
        sizes = {"n_images": counts["in"] + counts["out"], "n_out": counts["out"]}
        _write_gallery(Path(args.gallery), suspects, pipeline, alpha=args.alpha, **sizes)


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


def _printed(
    answers: Iterable[Prediction], args: argparse.Namespace, out: TextIO, paths: Sequence[str]
) -> Iterator[Prediction]:
    """Print answers as CSV or JSON lines as they pass, for the reader of a pipe.

    A shard gets comments: which it is, the batch of the rows that follow, and a checksum.
    """
    from nac_openood.sources.fitted import Prediction

    digest, is_csv = hashlib.sha256(), args.format == "csv"
    batch_size = inputs.loading(args)["batch_size"]

    def write(text: str) -> None:
        out.write(text)
        out.flush()
        # the bytes, because stdout may have any encoding
        digest.update(text.encode(out.encoding or "utf-8", out.errors or "strict"))

    if args.shard:
        number, of = args.shard
        detector = hashlib.sha256(Path(args.detector).read_bytes()).hexdigest()
        options = (detector, args.alpha, args.format, batch_size, args.skip_bad, *paths)
        run = hashlib.sha256("\0".join(map(repr, options)).encode()).hexdigest()
        write(f"# nac-openood score, shard {number}/{of} of {run[:16]}\n")
    if is_csv:
        write(_csv_row(Prediction("").fields()))
    for n, answer in enumerate(answers):
        if args.shard and n % batch_size == 0:
            write(f"# batch {n // batch_size * of + number - 1}\n")
        if not answer.problem:
            row = answer.json_fields()
            write(_csv_row(answer.fields().values()) if is_csv else f"{json.dumps(row)}\n")
        yield answer
    if args.shard:
        write(f"# end {digest.hexdigest()}\n")


def _csv_row(values: Iterable[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


def merge_tables(paths: Sequence[Path]) -> bytes:
    """The table that `score` would have printed without `--shard`.

    Raises:
        NACError: a shard is missing, unfinished or of another run.
    """
    shards = distributed.ordered_shards(map(_read_shard, paths))
    batches = {number: rows for shard in shards for number, rows in shard.content.items()}
    return b"".join(batches[number] for number in sorted(batches))


def _read_shard(path: Path) -> distributed.ShardResult:
    """Read a shard: its rows by batch, and the header as batch -1."""
    content = path.read_bytes() if path.is_file() else b""
    first = _FIRST.match(content)
    if first is None:
        raise NACError(
            f"{path} cannot be merged with the others: expected tables of nac-openood score "
            "--shard, or folders that nac-openood fit --shard or nac-openood compare wrote."
        )
    body, _, end = content.rpartition(b"# end")
    # early versions wrote no checksum
    if not body or end not in (f" {hashlib.sha256(body).hexdigest()}\n".encode(), b"\n"):
        raise NACError(f"{path} is incomplete or was changed. Run this shard again.")
    header, *parts = _BATCH.split(body[first.end() :])
    batches = {-1: header, **dict(zip(map(int, parts[::2]), parts[1::2]))}
    return distributed.ShardResult(path, int(first[1]), int(first[2]), first[3], batches)


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
