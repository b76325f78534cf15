"""Files that are written whole or not at all: text, JSON, and tensors with JSON (safetensors).

Documents and tensors carry a checksum of their content; see `nac_openood.seals`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from nac_openood.distributed import is_main, together
from nac_openood.errors import FileError, NACError, first_line, why_unreadable
from nac_openood.paths import PathLike, is_file, is_folder, mode_of
from nac_openood.seals import SEAL, SealedPart, seal_of, sealed, unsealed

_T = TypeVar("_T")
_METADATA = {"kind", "version", "about"}


@contextmanager
def replacing(path: PathLike) -> Iterator[Path]:
    """A temporary neighbour of `path` to write to, which takes its place when all went well.

    A reader sees the old file or the new one, never a part; the neighbour is removed when
    anything fails. The new file has the mode of the old one; a link stays, and the file that it
    leads to is replaced. Where several processes work together, the first one writes the file,
    and the others wait until it is there.
    """
    path = Path(path)
    with together(f"write {path.name}"):
        target = check_target(path)
        with _replacing(target) if is_main() else _thrown_away() as temporary:
            yield temporary


@contextmanager
def _thrown_away() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "file"


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    # its name is known before it is made, so that an interrupt at any moment finds it
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    old = mode_of(path)
    try:
        # a private file is private from the first byte on
        temporary.touch(stat.S_IMODE(old) | stat.S_IWUSR if old else 0o666, exist_ok=False)
        yield temporary
        if old:
            temporary.chmod(stat.S_IMODE(old))
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, (OSError, SafetensorError)):
            raise FileError(f"cannot write {path}: {why_unreadable(error)}.") from error
        raise


def remove(path: Path) -> None:
    """Remove a file if it is there, or say why not; only the first of several processes does so."""
    try:
        if is_main():
            path.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"cannot remove {path}: {error.strerror}.") from error


def check_target(path: Path) -> Path:
    """The file to write: `path`, or the one that it leads to if it is a link.

    Raises:
        FileError: its folder does not exist, or it is something else than a file.
    """
    check_encoding(path)
    found = mode_of(path)
    if stat.S_ISDIR(found):
        raise FileError(f"cannot write {path}: it is a folder. Name a file.")
    if found and not stat.S_ISREG(found):
        raise FileError(f"cannot write {path}: it is a device, pipe or socket. Name a file.")
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if not is_folder(target.parent):
        raise FileError(
            f"cannot write {path}: there is no folder {target.parent}. Create it first."
        )
    return target


def check_encoding(path: PathLike) -> None:
    """Refuse a path that is not UTF-8, which the safetensors library does not open."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        told = f"{path} cannot be used: its name is not UTF-8. Choose another one."
        raise FileError(told) from error


def make_folder(folder: PathLike) -> Path:
    """Create a folder, or say why not."""
    check_encoding(folder)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot create the folder {folder}: {error.strerror}.") from error
    return Path(folder)


def write_text(path: PathLike, text: str) -> Path:
    """Write UTF-8 text whole or not at all, and return the path.

    What is not Unicode, as in names of files that are not UTF-8, is written as an escape sequence.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
    return Path(path)


def read_text(path: PathLike, what: str = "") -> str:
    """The UTF-8 text in a file, or an error that calls it `what`, by default its path."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")  # some editors begin with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise NACError(f"cannot read {what or path}: {why_unreadable(error)}.") from error


def write_json(path: PathLike, content: Any) -> Path:
    """Write a JSON value whole or not at all, and return the path."""
    return write_text(path, json.dumps(content, indent=1) + "\n")


def write_weights(path: PathLike, net: nn.Module) -> Path:
    """Write a network's state dict with `torch.save`, whole or not at all, and return the path."""
    with replacing(path) as temporary:
        try:
            torch.save(net.state_dict(), temporary)
        except RuntimeError as error:  # what torch makes of a full disk
            raise FileError(f"cannot write {path}: {first_line(error)}.") from error
    return Path(path)


def read_json(path: PathLike) -> Any:
    """The value in a JSON file.

    Raises:
        OSError: if the file cannot be read.
        FileError: if it is no JSON; the message does not name the file.
    """
    try:
        return parse_json(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise FileError(why_unreadable(error)) from error


def parse_json(text: str) -> Any:
    """The value of a JSON text, in which every key of an object stands once.

    Raises:
        FileError: what is wrong with it.
    """
    try:
        return json.loads(text, object_pairs_hook=_each_once)
    except RecursionError as error:
        raise FileError("it is nested too deeply") from error
    except FileError:
        raise
    except ValueError as error:  # also a number of thousands of digits
        raise FileError(f"it is not JSON: {error}") from error


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise FileError(f"the key '{twice}' stands twice")
    return found


def write_document(
    path: PathLike, version: int, content: Mapping[str, Any], *, kind: str = ""
) -> Path:
    """Write a JSON object that `read_document` reads, whole or not at all; returns the path."""
    named = {"kind": kind} if kind else {}
    return write_json(path, sealed({"format": version, **named, **content}))


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
        version: the newest format that `parse` knows.
        parse: makes the result of the other entries, or raises a `NACError` that says what is
            wrong with them.
        missing: what to say if there is no such file.
        again: how to get a new file if this one is damaged.
        kind: what it holds, if files of other kinds have the same name; early ones do not say.

    Raises:
        FileError: if the file is missing, damaged, of another kind or of a newer format.
    """
    try:
        document = read_json(path)
        found = document.get("format") if isinstance(document, dict) else None
        if type(found) is not int or found < 1:
            raise FileError("expected an object with an entry 'format'")
    except (FileNotFoundError, NotADirectoryError):
        raise FileError(f"{missing}.") from None
    except OSError as error:
        raise FileError(f"cannot read {path}: {why_unreadable(error)}.") from error
    except NACError as error:
        raise FileError(f"{path} is damaged ({why_unreadable(error)}). {again}.") from error
    if kind and document.get("kind", kind) != kind:
        raise FileError(f"{path} holds {document['kind']}, expected {kind}.")
    _refuse_newer(path, found, version)
    try:
        content = unsealed(document)
        for name in ("format", "kind") if kind else ("format",):
            content.pop(name, None)
        return parse(content)
    except NACError as error:
        raise FileError(f"{path} is damaged ({why_unreadable(error)}). {again}.") from error


@contextmanager
def damage(path: PathLike, again: str) -> Iterator[None]:
    """Say of any error about what is in a file that the file is damaged, and what to do.

    Args:
        path: of the file.
        again: what to do, e.g. "Fit again".
    """
    try:
        yield
    except FileError:
        raise
    except NACError as error:
        raise FileError(f"{path} is damaged: {why_unreadable(error)}. {again}.") from error


def _refuse_newer(path: PathLike, found: int, known: int) -> None:
    if found > known:
        raise FileError(
            f"{path} has format {found}; this nac_openood reads up to {known}. Upgrade it: "
            "pip install -U nac-openood."
        )


def write_tensors(
    path: PathLike, kind: str, version: int, tensors: dict[str, Tensor], about: Any
) -> None:
    """Write `tensors` and the JSON value `about` atomically; see `replacing`.

    Equal content makes equal files.
    """
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    parts = {name: SealedPart.of(tensor) for name, tensor in on_cpu.items()}
    with replacing(path) as temporary, temporary.open("wb") as out:
        # the library writes metadata in a random order, so that is added here
        plain = memoryview(save(on_cpu))
        end = 8 + int.from_bytes(plain[:8], "little")
        header = {
            "__metadata__": metadata_of(kind, version, about, parts),
            **json.loads(bytes(plain[8:end])),
        }
        out.write(header_bytes(header))
        out.write(plain[end:])


def header_bytes(header: Mapping[str, Any]) -> bytes:
    """The beginning of a safetensors file: its length, and JSON padded so that tensors align."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def metadata_of(
    kind: str, version: int, about: Any, parts: Mapping[str, SealedPart]
) -> dict[str, str]:
    """The safetensors metadata that `read_tensors` looks for."""
    metadata = {"kind": kind, "version": str(version), "about": json.dumps(about)}
    return {**metadata, SEAL: seal_of(metadata, parts)}


def read_tensors(
    path: PathLike, kind: str, version: int
) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
    """Read what `write_tensors` wrote; tensors are memory-mapped, on the CPU.

    The file is read once, piece by piece, to compare it with its checksum; files of early versions
    have none.

    Raises:
        FileError: if the file is missing, damaged, of another kind or of a newer version.
    """
    check_encoding(path)
    try:
        if not is_file(path):
            raise FileError(f"there is no file {path}.")
        Path(path).open("rb").close()  # of one that may not be read, safetensors says it is missing
        with safe_open(str(path), framework="pt") as opened:
            metadata = opened.metadata() or {}
            _check(path, metadata, kind, version)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except OSError as error:
        raise FileError(f"cannot read {path}: {why_unreadable(error)}.") from error
    except SafetensorError as error:
        raise FileError(f"{path} is damaged or not a safetensors file ({error}).") from error
    if SEAL in metadata:
        seal = metadata.pop(SEAL)
        if seal != seal_of(metadata, {name: SealedPart.of(t) for name, t in tensors.items()}):
            raise FileError(f"{path} is damaged: its content does not match its checksum.")
    try:
        about = parse_json(metadata["about"])
    except FileError as error:
        raise FileError(f"{path} is damaged: {error}.") from error
    if not isinstance(about, dict):
        raise FileError(f"{path} is damaged: 'about' must be an object with named entries.")
    return tensors, about


def checksum_in(path: PathLike) -> str:
    """The checksum that a file of tensors holds; empty if it is missing, damaged, or has none."""
    try:
        with safe_open(str(path), framework="pt") as opened:
            return (opened.metadata() or {}).get(SEAL, "")
    except (SafetensorError, OSError):
        return ""


def _check(path: PathLike, metadata: Mapping[str, str], kind: str, version: int) -> None:
    found = metadata.get("kind")
    if found != kind:
        raise FileError(f"{path} holds {found or 'something unknown'}, expected {kind}.")
    if re.fullmatch("[0-9]{1,9}", metadata.get("version", "")) is None:
        raise FileError(f"{path} is damaged: it names no format version.")
    _refuse_newer(path, int(metadata["version"]), version)
    if set(metadata) not in (_METADATA, _METADATA | {SEAL}):
        raise FileError(f"{path} is damaged: its metadata has the entries {sorted(metadata)}.")
