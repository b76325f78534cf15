"""Tensors and JSON in one safetensors file, written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, Mapping, Union

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nac_openood.errors import FileError

PathLike = Union[str, "os.PathLike[str]"]


@contextmanager
def replacing(path: PathLike) -> Iterator[Path]:
    """A temporary neighbour of `path` to write to, which takes its place when all went well.

    A reader sees the old file or the new one, never a part; the neighbour is removed when
    anything fails.
    """
    path = Path(path)
    check_folder(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}.") from error
    os.close(handle)
    try:
        yield Path(temporary)
        # mkstemp makes private files; a saved file has the permissions of any other
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # noqa: PTH101
        os.replace(temporary, path)  # noqa: PTH105
    except (OSError, SafetensorError) as error:
        raise FileError(f"cannot write {path}: {error}.") from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def check_folder(path: Path) -> None:
    """Refuse a path whose folder does not exist."""
    if not path.parent.is_dir():
        raise FileError(f"cannot write {path}: there is no folder {path.parent}. Create it first.")


def make_folder(folder: PathLike) -> Path:
    """Create a folder, or say why not."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot create the folder {folder}: {error.strerror}.") from error
    return Path(folder)


def write_text(path: PathLike, text: str) -> None:
    """Write UTF-8 text whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write(path: PathLike, kind: str, version: int, tensors: dict[str, Tensor], about: Any) -> None:
    """Write `tensors` and the JSON value `about` atomically; see `replacing`."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        save_file(on_cpu, temporary, metadata=metadata_of(kind, version, about))


def metadata_of(kind: str, version: int, about: Any) -> dict[str, str]:
    """The safetensors metadata that `read` looks for."""
    return {"kind": kind, "version": str(version), "about": json.dumps(about)}


def read(path: PathLike, kind: str, version: int) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
    """Read what `write` wrote; tensors are memory-mapped, on the CPU.

    Raises:
        FileError: if the file is missing, damaged, of another kind or of a newer version.
    """
    if not Path(path).is_file():
        raise FileError(f"there is no file {path}.")
    try:
        with safe_open(str(path), framework="pt") as opened:
            metadata = opened.metadata() or {}
            _check(path, metadata, kind, version)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        return tensors, json.loads(metadata["about"])
    except (SafetensorError, json.JSONDecodeError, KeyError, OSError) as error:
        raise FileError(f"{path} is damaged or not a safetensors file ({error}).") from error


def _check(path: PathLike, metadata: Mapping[str, str], kind: str, version: int) -> None:
    found = metadata.get("kind")
    if found != kind:
        raise FileError(f"{path} holds {found or 'something unknown'}, expected {kind}.")
    if not metadata.get("version", "").isdigit():
        raise FileError(f"{path} is damaged: it names no format version.")
    if int(metadata["version"]) > version:
        raise FileError(
            f"{path} has format version {metadata['version']}; this nac_openood reads up to "
            f"{version}. Upgrade it: pip install -U nac-openood."
        )
