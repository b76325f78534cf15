"""`--shard I/N`: one share of the work, on any machine and at any time; `merge` joins the shares.

A shard of `score` is a table with comments: which shard it is, which batch each row is of, and at
its end a checksum of it.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterable, Iterator, NamedTuple, Sequence, TextIO

from nac_openood.distributed import check_shards
from nac_openood.errors import NACError, why_unreadable
from nac_openood.files import is_file

if TYPE_CHECKING:
    from argparse import _ActionsContainer

_FIRST = re.compile(r"# nac-openood score, shard ([0-9]+)/([0-9]+) of ([0-9a-f]{16})")
_BATCH = re.compile(r"# batch ([0-9]+), ([0-9]+) lines")
_END = "# end"


class ShardOption(NamedTuple):
    """Which shard, from 1 on, of how many."""

    number: int
    of: int


def add_shard(group: _ActionsContainer) -> None:
    """Add the option."""
    group.add_argument(
        "--shard", metavar="I/N", type=_parsed,
        help="do only share I of N, e.g. as one of N jobs of a batch system; nac-openood merge "
        "joins the shares",
    )  # fmt: skip


def _parsed(text: str) -> ShardOption:
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(
            f"expected I/N with 1 <= I <= N, such as 2/5, got '{text}'"
        )
    return ShardOption(int(match[1]), int(match[2]))


# -- shards of a table ---------------------------------------------------------------------


def run_digest(paths: Iterable[str], *more: Any) -> str:
    """A hash of what all shards must have in common."""
    digest = hashlib.sha256("\0".join(map(repr, more)).encode())
    for path in paths:
        digest.update(b"\0" + path.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


class TableShard(io.StringIO):
    """Where a shard of `score` is written to: text that is passed on with the batch it is of.

    Args:
        out: where it goes.
        shard: which one it is.
        common: what all shards have in common; see `run_digest`.
        batch_size: images per batch.
    """

    def __init__(self, out: TextIO, shard: ShardOption, common: str, batch_size: int) -> None:
        super().__init__()
        self._out, self._shard, self._batch_size, self._answers = out, shard, batch_size, 0
        self._digest = hashlib.sha256()
        self._tell(f"# nac-openood score, shard {shard.number}/{shard.of} of {common}\n")

    def begin(self) -> None:
        """What was written so far is the header."""
        self._tell(self._taken())

    def answered(self) -> None:
        """Another image is dealt with, whether there was anything to write or not."""
        self._answers += 1
        if self._answers % self._batch_size == 0:
            self._pass_on(self._answers // self._batch_size - 1)

    def finish(self) -> None:
        """The shard is whole."""
        if self._answers % self._batch_size:
            self._pass_on(self._answers // self._batch_size)
        self._out.write(f"{_END} {self._digest.hexdigest()}\n")
        self._out.flush()

    def _pass_on(self, turn: int) -> None:
        text = self._taken()
        number = turn * self._shard.of + self._shard.number - 1
        lines = text.count("\n")
        self._tell(f"# batch {number}, {lines} lines\n{text}")
        self._out.flush()

    def _tell(self, text: str) -> None:
        self._out.write(text)
        # of the bytes, since the file may be in any encoding
        encoded = text.encode(self._out.encoding or "utf-8", self._out.errors or "strict")
        self._digest.update(encoded)

    def _taken(self) -> str:
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


class _Table(NamedTuple):
    path: Path
    shard: ShardOption
    common: str
    header: tuple[str, ...]
    batches: dict[int, list[str]]


def merged_table(paths: Sequence[Path]) -> Iterator[str]:
    """The lines, with their ends, that `score` would have printed without `--shard`.

    Raises:
        NACError: a shard is missing, unfinished or of another run.
    """
    tables = sorted(map(_read, paths), key=lambda table: table.shard.number)
    first = tables[0]
    for table in tables:
        if (table.common, table.shard.of) != (first.common, first.shard.of):
            raise NACError(
                f"{table.path} and {first.path} are shards of different runs: images, detector and "
                "options must be the same."
            )
    check_shards([table.shard.number for table in tables], first.shard.of)
    yield from first.header
    batches = {number: rows for table in tables for number, rows in table.batches.items()}
    for number in sorted(batches):
        yield from batches[number]


def is_table(path: Path) -> bool:
    """Whether a file begins as a shard of `score` does."""
    if not is_file(path):
        return False
    try:
        with path.open("rb") as file:
            first = file.readline(200).decode("utf-8", "replace")
    except OSError as error:
        raise _unreadable(path, error) from error
    return _FIRST.fullmatch(first.rstrip("\n")) is not None


def _unreadable(path: Path, error: OSError) -> NACError:
    return NACError(f"cannot read {path}: {why_unreadable(error)}.")


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise _unreadable(path, error) from error
    return [f"{line}\n" for line in text.split("\n")[:-1]] or [""]


def _read(path: Path) -> _Table:
    lines = _lines(path)
    match = _FIRST.fullmatch(lines[0].rstrip("\n"))
    if match is None:
        raise NACError(f"{path} is no shard of nac-openood score.")
    at, header = 1, []
    while at < len(lines) and not lines[at].startswith("# "):
        header.append(lines[at])
        at += 1
    batches: dict[int, list[str]] = {}
    while at < len(lines):
        batch = _BATCH.fullmatch(lines[at].rstrip("\n"))
        if batch is None:
            break
        # counted, because a row may look like anything
        batches[int(batch[1])] = lines[at + 1 : at + 1 + int(batch[2])]
        at += 1 + int(batch[2])
    digest = hashlib.sha256("".join(lines[:at]).encode("utf-8", "surrogateescape")).hexdigest()
    # early versions wrote no checksum
    if lines[at:] not in ([f"{_END} {digest}\n"], [f"{_END}\n"]):
        raise NACError(f"{path} is not whole, or was changed. Run this shard again.")
    shard = ShardOption(int(match[1]), int(match[2]))
    return _Table(path, shard, match[3], tuple(header), batches)
