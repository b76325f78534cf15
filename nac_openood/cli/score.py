"""`nac-openood score`: a detector file and images become a table on stdout, and nothing else."""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Iterator, Sequence, TextIO

from nac_openood.cli import given, options
from nac_openood.cli.output import complain, results_out
from nac_openood.cli.sharding import TableShard, add_shard, run_digest
from nac_openood.distributed import synchronized
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from nac_openood.sources.judged import Judged

_EXAMPLES = f"""\
examples:
  nac-openood score --detector birds.nac --arch net.py:make --checkpoint net.pt photos/ > birds.csv
      judge all images in a folder and its subfolders
  find photos -type f -newer last_run | nac-openood score --detector birds.nac --arch net.py:make \\
      --checkpoint net.pt --format jsonl --skip-bad -
      images of a list on stdin, one path per line; bad files are named on stderr
  nac-openood score --detector birds.nac --arch net.py:make --checkpoint net.pt photos/ \\
      --gallery suspicious.html > birds.csv
      also a page with the most suspicious images and the reasons

Columns: path, class (what the network says), confidence (its softmax probability), score (higher =
more in-distribution), p_value (about a share p of in-distribution images scores this low) and
decision: 'out' where p_value <= --alpha, else 'in'.
The transform, and the network if it is found by name alone, are taken from the detector's file.
Detector and network must belong together; anything else is refused.
Results go to stdout; bars, warnings and errors to stderr.
For exit codes see nac-openood --help.

{options.NETWORK_FORMS}"""


def add(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_command(
        commands, "score", _score, epilog=_EXAMPLES,
        help="judge images with a fitted detector: class, score, p-value, decision",
        description="Judge images with a detector that nac-openood fit wrote. Prints a header and "
        "one line for each image.",
    )  # fmt: skip
    parser.add_argument(
        "paths", nargs="+", metavar="PATHS",
        help="images, folders (with subfolders, in order), or - for a list on stdin; text files "
        "for a network of texts",
    )  # fmt: skip
    given.add_detector(parser.add_argument_group("detector and network"))
    group = parser.add_argument_group("how to judge")
    options.add(group, "--alpha")
    group.add_argument(
        "--format", choices=list(_FORMATS), default="csv", help="output (default: %(default)s)"
    )
    options.add(group, "--skip-bad")
    group.add_argument(
        "--gallery", metavar="FILE", help="write a page with the most suspicious images, HTML"
    )
    options.add(group, "--batch-size", "--workers", "--device")
    add_shard(group)


def _score(args: argparse.Namespace) -> int:
    out = results_out()
    # whatever else is printed, e.g. by the user's own network, must not get into the table
    with redirect_stdout(sys.stderr), synchronized("judge images"):
        return _judge(args, out)


def _judge(args: argparse.Namespace, out: TextIO) -> int:
    from nac_openood.cli.score_gallery import Suspicious
    from nac_openood.detector.verdicts import checked_alpha
    from nac_openood.distributed import from_main, is_main
    from nac_openood.progress import tqdm
    from nac_openood.sources.image_paths import expand, judge_images
    from nac_openood.sources.texts import takes_text

    checked_alpha(args.alpha)
    suspicious = Suspicious(args.gallery) if args.gallery else None
    deployed = given.deployed(args)
    texts = takes_text(deployed.transform)
    if texts and args.gallery:
        raise NACError("--gallery shows images, and this detector is one of texts.")
    # listed once: processes that read one stdin would each get a part of it
    paths = from_main("list of files", lambda: expand(_named(args.paths), texts=texts))
    loading = options.loading(args)
    shard = _shard(args, out, paths, loading["batch_size"])
    write, bad = _FORMATS[args.format](out if shard is None else shard), 0
    if shard is not None:
        shard.begin()
    out.flush()
    answers = judge_images(deployed, paths, alpha=args.alpha, **loading)
    hidden = None if is_main() else True
    total = None if args.shard else len(paths)
    with _share(args), tqdm(
        total=total, unit="image", desc="score", disable=hidden, leave=False
    ) as bar:  # fmt: skip
        for answer in answers:
            bar.update()
            if answer.problem:
                bad += 1
                _tell_bad(answer, args.skip_bad)
            else:
                write(answer)
                out.flush()  # whoever reads the other end of a pipe need not wait
                if suspicious is not None:
                    suspicious.see(answer)
            if shard is not None:
                shard.answered()
    if shard is not None:
        shard.finish()
    if bad:
        complain(f"left out {bad} of {len(paths)} files, which cannot be read")
    if suspicious is not None:
        suspicious.write(deployed, args.alpha)
    return 0


def _shard(
    args: argparse.Namespace, out: TextIO, paths: Sequence[str], batch_size: int
) -> TableShard | None:
    """Where a shard is written to; None for a whole table."""
    if args.shard is None:
        return None
    if args.gallery:
        raise NACError("--gallery needs all images: leave out --shard.")
    digest = hashlib.sha256(Path(args.detector).read_bytes()).hexdigest()
    common = run_digest(paths, digest, args.alpha, args.format, batch_size, args.skip_bad)
    return TableShard(out, args.shard, common, batch_size)


def _share(args: argparse.Namespace) -> ContextManager[None]:
    from nac_openood.distributed import as_shard

    return nullcontext() if args.shard is None else as_shard(args.shard.number - 1, args.shard.of)


def _named(paths: list[str]) -> Iterator[str]:
    """The paths, with those on stdin in the place of `-`."""
    for path in paths:
        if path != "-":
            yield path
            continue
        for line in sys.stdin:
            name = line.rstrip("\r\n").removeprefix("\ufeff")  # with which some lists begin
            if name.strip():
                yield name


def _tell_bad(answer: Judged, skip: bool) -> None:
    text = f"cannot read {answer.path} ({answer.problem})"
    if not skip:
        raise NACError(f"{text}. Replace it, or pass `skip_bad=True` to go on without such files.")
    complain(text)


def _csv(out: Any) -> Callable[[Judged], None]:
    from nac_openood.sources.judged import Judged

    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(Judged("").fields())
    return lambda answer: writer.writerow(answer.fields().values())


def _jsonl(out: Any) -> Callable[[Judged], None]:
    return lambda answer: print(json.dumps(answer.json_fields()), file=out)


_FORMATS: dict[str, Callable[[Any], Callable[[Judged], None]]] = {"csv": _csv, "jsonl": _jsonl}
