"""`nac-openood score`: judge images with a detector; stdout gets a table and nothing else.

`merge_tables` joins shards of the table, which `--shard I/N` prints.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import heapq
import json
import re
import sys
import unicodedata
from collections import Counter
from contextlib import nullcontext, redirect_stdout, suppress
from pathlib import Path
from types import SimpleNamespace
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
#: Unicode categories of characters that break lines, or that terminals act on.
_LINE_BREAKING = ("Cc", "Zl", "Zp")
#: The beginnings of what a spreadsheet may take for a formula; full-width signs count, too.
_FORMULA = (*"=+-@\t\r\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
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
  --fdr Q: float          choose what is 'out' so that, on average, at most this share of it is
      in-distribution, instead of by --alpha; nothing is printed before all images are judged
  --monitor FILE          watch for drift in all runs with this FILE, which is created or continued;
      FILE.svg shows the evidence over time. Images sorted otherwise than by time, say by class, may
      raise an alarm by their order alone
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
          a list of images on stdin, one path per line; unreadable files are named on stderr
      nac-openood score --detector birds.nac --arch net.py:make --checkpoint net.pt photos/ \
          --gallery suspicious.html > birds.csv
          also write a page with the most suspicious images and the reasons

    Columns: path, class (the network's prediction), confidence (its softmax probability), score
    (higher = more in-distribution), p_value (at most a share p of in-distribution images scores
    this low, see docs/guarantees.md) and decision: 'out' (out-of-distribution) where
    p_value <= --alpha, else 'in'.
    The transform is taken from the detector's file, and so is a network that needs no files.
    The network must be the one that the detector was fitted on.
    Results go to stdout; progress, warnings and errors to stderr.
    For exit codes see nac-openood --help.
    """
    out = results_stream()
    # other output, e.g. of the user's own network, must not get into the table
    with redirect_stdout(sys.stderr), distributed.synchronized("judge images"):
        _score(args, out)
    return 0


def _score(args: argparse.Namespace, out: TextIO) -> None:
    from nac_openood.detector import batches, outcomes
    from nac_openood.sources import fitted

    outcomes.checked_alpha(args.alpha)
    if args.gallery:
        inputs.check_output(args, "gallery")  # before the slow part, so that it can be written
    for name in ("gallery", "fdr", "monitor"):
        if args.shard and getattr(args, name) is not None:
            raise NACError(f"--{name} needs all images: leave out --shard.")
    pipeline = inputs.detector_of(args, images_for="--gallery" if args.gallery else "")
    if args.fdr is None:
        pipeline.detector._p_values().warn_if_never(args.alpha)
    paths = inputs.files_of(args, pipeline)
    counts = Counter[str]()
    own = distributed.as_shard(args.shard[0] - 1, args.shard[1]) if args.shard else nullcontext()
    with own, inputs.monitor_of(pipeline.detector, args.monitor) as monitor:
        found = fitted.judge_images(
            pipeline, paths, alpha=args.alpha, monitor=monitor, **inputs.loading(args)
        )
        total, hidden = None if args.shard else len(paths), None if distributed.is_main() else True
        bar = batches.tqdm(found, "score", total, False, unit="image", disable=hidden)
        predictions: Iterable[Prediction] = bar
        if args.fdr is not None:
            predictions = fitted.selected(bar, args.fdr, pipeline.detector._p_values())
        printed = _printed(predictions, args, out, paths, counts)
        suspects = heapq.nsmallest(_IN_GALLERY, printed, key=lambda prediction: prediction.score)
    if counts["bad"]:
        print_error(f"left out {counts['bad']} of {len(paths)} files, which cannot be read")
    if monitor is not None:
        from nac_openood.files import write_text
        from nac_openood.report.drift import evidence_figure
        from nac_openood.report.figures import svg_file

        print_error(f"{args.monitor}: {monitor}")
        with suppress(NACError):  # without matplotlib
            write_text(f"{args.monitor}.svg", svg_file(evidence_figure(monitor)))
    if args.gallery:
        sizes = {"n_images": counts["in"] + counts["out"], "n_out": counts["out"]}
        how = {"alpha": args.alpha, "fdr": args.fdr}
        _write_gallery(Path(args.gallery), suspects, pipeline, **how, **sizes)


def _printed(
    predictions: Iterable[Prediction],
    args: argparse.Namespace,
    out: TextIO,
    paths: Sequence[str],
    counts: Counter[str],
) -> Iterator[Prediction]:
    """Print each prediction at once as CSV or a JSON line; yield those whose score is a number.

    A shard gets comments: which it is, the batch of the rows that follow, and a checksum.

    Args:
        predictions: one for each file.
        args: the options.
        out: the stream to print to.
        paths: of all files.
        counts: gets the number of each decision, and of files that are "bad".
    """
    from nac_openood.sources.fitted import Prediction

    digest, is_csv = hashlib.sha256(), args.format == "csv"
    batch_size = inputs.loading(args)["batch_size"]

    def write(text: str) -> None:
        out.write(text)
        out.flush()
        # the bytes, because stdout may have any encoding
        digest.update(text.encode(out.encoding or "utf-8", out.errors or "strict"))

    stream: Any = SimpleNamespace(write=write)
    table = csv.writer(stream, lineterminator="\n")
    if args.shard:
        number, of = args.shard
        detector = hashlib.sha256(Path(args.detector).read_bytes()).hexdigest()
        options = (detector, args.alpha, args.format, batch_size, args.skip_bad, *paths)
        run = hashlib.sha256("\0".join(map(repr, options)).encode()).hexdigest()
        write(f"# nac-openood score, shard {number}/{of} of {run[:16]}\n")
    if is_csv:
        table.writerow(Prediction("").fields())
    for n, prediction in enumerate(predictions):
        if args.shard and n % batch_size == 0:
            write(f"# batch {n // batch_size * of + number - 1}\n")
        counts["bad" if prediction.problem else prediction.decision] += 1
        if not inputs.is_readable(prediction, args.skip_bad):
            continue
        if is_csv:
            table.writerow(map(_cell, prediction.fields().values()))
        else:
            write(f"{json.dumps(prediction.json_fields())}\n")
        if prediction.score == prediction.score:  # nothing can be explained about NaN
            yield prediction
    if args.shard:
        write(f"# end {digest.hexdigest()}\n")


def _cell(value: Any) -> Any:
    """A value for CSV that stays on its line, and in which no spreadsheet finds a formula.

    Control characters, such as a line break in the name of a file, are written as Python escapes.
    Text that begins like a formula gets a single quote in front, as OWASP advises.
    """
    if not isinstance(value, str):
        return value
    escapes = {c: repr(c)[1:-1] for c in set(value) if unicodedata.category(c) in _LINE_BREAKING}
    text = "".join(escapes.get(c, c) for c in value)
    return f"'{text}" if value.startswith(_FORMULA) else text


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
    for prediction in suspects:
        try:
            picture = rgb_image(Path(prediction.path))
        except ImageError:  # it was removed or changed
            continue
        why = pipeline.detector.explain(pipeline.transform(picture)[None], top=5)[0]
        found.append((prediction, png_url(small_png(picture)), why))
    arch = pipeline.detector.notes_.get("arch", type(pipeline.detector.net).__name__)
    write_text(path, suspects_page(found, arch=arch, **about))
    print_error(f"written to {path}: the {len(found)} most suspicious images")
