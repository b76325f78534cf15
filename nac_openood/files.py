"""Text and JSON files that are written whole or not at all, and a lock for a folder of results.

JSON documents carry a checksum of their content: a flipped bit in a digit leaves a file that looks
fine. The checksum finds damage; it does not protect against somebody who changes a file on purpose.
Files of tensors are in `nac_openood.tensor_files`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, TypeVar, Union

from nac_openood.distributed import from_main, is_main, synchronized
from nac_openood.errors import FileError, NACError, why_unreadable

if TYPE_CHECKING:
    from torch import nn

_T = TypeVar("_T")
PathLike = Union[str, "os.PathLike[str]"]
#: The entry of a document, or of a file's metadata, that holds the checksum.
CHECKSUM = "sha256"


@contextmanager
def file_errors(what: str) -> Iterator[None]:
    """Say what could not be done to a file if the operating system refuses, e.g. "read a.txt"."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot {what}: {why_unreadable(error)}.") from error


# -- writing -------------------------------------------------------------------------------


def make_folder(folder: PathLike) -> Path:
    """Create a folder with its parents, unless it exists."""
    with file_errors(f"create the folder {folder}"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)


def as_path(path: PathLike) -> Path:
    """The path of a file's name, which may be bytes.

    Raises:
        FileError: no file can have this name.
    """
    with suppress(TypeError):
        if "\0" not in os.fsdecode(path):
            return Path(os.fsdecode(path))
    raise FileError(f"expected the name of a file, got {path!r}.")


def check_target(path: PathLike) -> Path:
    """Check that a file can be written; returns `path`, or the target of a link.

    Raises:
        FileError: its folder does not exist, or something other than a file is there.
    """
    path = as_path(path)
    try:
        target = path.resolve() if path.is_symlink() else path
        is_other = target.exists() and not target.is_file()
    except (OSError, RuntimeError) as error:  # a name that is too long, or a loop of links
        raise FileError(f"cannot write {path}: {why_unreadable(error)}.") from error
    if is_other:
        raise FileError(f"cannot write {path}: it is a folder or a device. Name a file.")
    if not target.parent.is_dir():
        raise FileError(f"cannot write {path}: there is no folder {target.parent}: create it.")
    return target


@contextmanager
def replacing(path: PathLike) -> Iterator[Path]:
    """Write a file atomically: yields a temporary path beside it, which replaces it at the end.

    A reader sees the old file or the new one, never a part of it; nothing is left behind when
    something fails. The new file has the mode of the old one. If `path` is a link, its target is
    replaced. Of several processes that work together, the first one writes, and the others wait
    for it.
    """
    with synchronized(f"write {as_path(path).name}"):
        target = check_target(path)
        if not is_main():
            with tempfile.TemporaryDirectory() as folder:
                yield Path(folder) / "discarded"
            return
        # named before it is created, so that an interrupt at any time can remove it
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            with file_errors(f"write {target}"):
                if target.exists():  # a private file stays private from its first byte
                    temporary.touch()
                    shutil.copymode(target, temporary)
                yield temporary
                temporary.replace(target)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove a file if it exists; only the first of several processes does so."""
    with file_errors(f"remove {path}"):
        if is_main():
            path.unlink(missing_ok=True)


def write_text(path: PathLike, text: str) -> Path:
    """Write UTF-8 text atomically, and return the path.

    Characters that are not Unicode, as in file names that are not UTF-8, are written as escapes.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
    return Path(path)


def write_json(path: PathLike, content: Any) -> Path:
    """Write a JSON value atomically, and return the path."""
    return write_text(path, json.dumps(content, indent=1) + "\n")


def write_weights(path: PathLike, net: nn.Module) -> Path:
    """Write a network's state dict as `torch.save` does, atomically, and return the path."""
    import torch

    content = io.BytesIO()  # given a path, torch raises a RuntimeError if the disk is full
    torch.save(net.state_dict(), content)
    with replacing(path) as temporary:
        temporary.write_bytes(content.getbuffer())
    return Path(path)


@contextmanager
def locked(target: PathLike) -> Iterator[None]:
    """Lock a folder or a file against other processes that call this, while the block runs.

    Two comparisons in one folder would overwrite each other's files. The operating system releases
    the lock however the process ends. A process may lock a folder again that it has locked; of
    several processes that work together, the first one holds the lock.

    Raises:
        FileError: another process has locked it.
    """
    import filelock

    path = Path(target).resolve()
    is_folder = path.is_dir()
    path = path / ".lock" if is_folder else path.with_name(f".{path.name}.lock")
    lock = filelock.FileLock(path, timeout=0, thread_local=False, is_singleton=True)

    def acquire() -> None:
        try:
            lock.acquire()
        except filelock.Timeout:
            other = "another folder with `out`" if is_folder else "another file"
            raise FileError(
                f"another command is using {target}. Wait until it has ended, or choose {other}."
            ) from None
        except NotImplementedError:  # a file system without locks
            pass

    from_main("lock the folder", acquire)
    try:
        yield
    finally:
        if is_main():
            lock.release()


# -- reading -------------------------------------------------------------------------------


def entries(folder: PathLike) -> list[Path]:
    """The paths in a folder, sorted."""
    with file_errors(f"read the folder {folder}"):
        return sorted(Path(folder).iterdir())


def read_text(path: PathLike, what: str = "") -> str:
    """The UTF-8 text in a file; an error calls it `what`, by default its path."""
    with file_errors(f"read {what or path}"):
        return Path(path).read_text(encoding="utf-8-sig")  # some editors write a byte order mark


def read_json(path: PathLike) -> Any:
    """The value in a JSON file.

    Raises:
        OSError: the file cannot be read.
        FileError: it is not JSON; the message does not name the file.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileError(f"it is not JSON: {why_unreadable(error)}") from error


def write_document(
    path: PathLike, version: int, content: Mapping[str, Any], *, kind: str = ""
) -> Path:
    """Write a JSON object that `read_document` reads, atomically, and return the path."""
    named = {"kind": kind} if kind else {}
    return write_json(path, with_checksum({"format": version, **named, **content}))


def read_document(
    path: PathLike,
    version: int,
    parse: Callable[[dict[str, Any]], _T],
    *,
    missing: str,
    again: str,
    kind: str = "",
) -> _T:
    """Read what `write_document` wrote.

    Args:
        path: of the file.
        version: the newest format that `parse` supports.
        parse: converts the other entries, or raises a `NACError` that says what is wrong.
        missing: the error if there is no such file.
        again: how to make a new file if this one is damaged.
        kind: what the file holds, if files of other kinds have the same name; early files lack it.

    Raises:
        FileError: the file is missing, damaged, of another kind or of a newer format.
    """
    try:
        document = read_json(path)
        found = document.get("format") if isinstance(document, dict) else None
        if type(found) is not int or found < 1:
            raise FileError("expected an object with an entry 'format'")
        if kind and document.get("kind", kind) != kind:
            message = f"{path} holds {document['kind']}, expected {kind}."
        elif found > version:
            message = newer_format(path, found, version)
        else:
            about = {"format", "kind"} if kind else {"format"}
            content = checked_content(document)
            return parse({name: content[name] for name in content if name not in about})
    except (FileNotFoundError, NotADirectoryError):
        message = f"{missing}."
    except OSError as error:
        message = f"cannot read {path}: {why_unreadable(error)}."
    except NACError as error:
        message = f"{path} is damaged ({why_unreadable(error)}). {again}."
    raise FileError(message)


def newer_format(path: PathLike, found: int, known: int) -> str:
    """The error for a file of a later version of this package."""
    return (
        f"{path} has format {found}; this nac_openood reads up to {known}. Upgrade it: "
        "pip install -U nac-openood."
    )


def digest_of(content: Any) -> str:
    """The SHA-256 of a JSON value."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def with_checksum(document: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its checksum as the last entry."""
    content = json.loads(json.dumps(document))  # as it will be read: tuples become lists
    return {**content, CHECKSUM: digest_of(content)}


def checked_content(document: Mapping[str, Any]) -> dict[str, Any]:
    """The object without its checksum; objects of early versions have none.

    Raises:
        FileError: the checksum does not match.
    """
    content = {name: value for name, value in document.items() if name != CHECKSUM}
    if CHECKSUM in document and document[CHECKSUM] != digest_of(content):
        raise FileError("its content does not match its checksum")
    return content
