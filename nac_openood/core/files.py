"""Tensors and JSON in one safetensors file, written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, Mapping, Union

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nac_openood.errors import FileError

PathLike = Union[str, "os.PathLike[str]"]


def write(path: PathLike, kind: str, version: int, tensors: dict[str, Tensor], about: Any) -> None:
    """Write `tensors` and the JSON value `about` atomically.

    A reader sees the old file or the new one, never a part: the bytes go to a temporary
    neighbour that is renamed when it is complete, and removed when anything fails.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileError(f"cannot write {path}: there is no folder {path.parent}. Create it first.")
    metadata = {"kind": kind, "version": str(version), "about": json.dumps(about)}
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}.") from error
    os.close(handle)
    try:
        save_file(on_cpu, temporary, metadata=metadata)
        # mkstemp makes private files; a saved file has the permissions of any other
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # noqa: PTH101
        os.replace(temporary, path)  # noqa: PTH105
    except (OSError, SafetensorError) as error:
        raise FileError(f"cannot write {path}: {error}.") from error
    finally:
        Path(temporary).unlink(missing_ok=True)


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
