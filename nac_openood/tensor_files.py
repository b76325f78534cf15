"""Files of tensors and a JSON value (safetensors), written atomically, with a checksum.

`write_tensors` writes tensors that are in memory; `TensorWriter` appends rows batch by batch, so
that only one batch is in memory. `read_tensors` reads both.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import tempfile
from contextlib import AbstractContextManager, ExitStack, suppress
from importlib.metadata import version
from typing import IO, Any, Mapping

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nac_openood import files
from nac_openood.__about__ import __version__
from nac_openood.distributed import is_main
from nac_openood.errors import FileError
from nac_openood.files import PathLike, file_errors

#: Names of dtypes in the safetensors format.
_DTYPES = {torch.bfloat16: "BF16", torch.uint8: "U8", torch.bool: "BOOL"}
_DTYPES |= {getattr(torch, f"float{bits}"): f"F{bits}" for bits in (16, 32, 64)}
_DTYPES |= {getattr(torch, f"int{bits}"): f"I{bits}" for bits in (8, 16, 32, 64)}


def write_tensors(
    path: PathLike, kind: str, version: int, tensors: Mapping[str, Tensor], about: Any
) -> None:
    """Write tensors and the JSON value `about`; equal content makes equal files."""
    with TensorWriter(path) as writer:
        writer.add(tensors)
        writer.finish(kind, version, about)


def read_tensors(
    path: PathLike, kind: str, version: int
) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
    """Read a file of tensors; they are memory-mapped, on the CPU.

    The file is read once, piece by piece, to verify its checksum, which early files do not have.

    Raises:
        FileError: the file is missing, damaged, of another kind or of a newer version.
    """
    path = files.as_path(path)
    if path.exists() and not path.is_file():  # opening a pipe would wait for somebody to write
        raise FileError(f"cannot read {path}: it is a folder or a device. Name a file.")
    try:
        with file_errors(f"read {path}"):
            path.open("rb").close()  # safetensors calls a file missing that may not be read
            with safe_open(str(path), framework="pt") as opened:
                metadata = opened.metadata() or {}
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise FileError(f"{path} is damaged or not a safetensors file ({error}).") from error
    found = metadata.get("kind")
    if found != kind:
        raise FileError(f"{path} holds {found or 'something unknown'}, expected {kind}.")
    format_version = metadata.get("version", "")
    if format_version.isdecimal() and int(format_version) > version:
        raise FileError(files.newer_format(path, int(format_version), version))
    checksum = metadata.pop(files.CHECKSUM, None)
    early = checksum is None and set(metadata) == {"kind", "version", "about"}
    digests = {} if early else {name: _digest(tensor) for name, tensor in tensors.items()}
    if not early and checksum != files.digest_of({"metadata": metadata, "tensors": digests}):
        raise FileError(f"{path} is damaged: its content does not match its checksum.")
    return tensors, json.loads(metadata["about"])


def checksum_in(path: PathLike) -> str:
    """The checksum that a file of tensors holds; empty if it is missing, damaged, or has none."""
    with suppress(SafetensorError, OSError), safe_open(str(path), framework="pt") as opened:
        return (opened.metadata() or {}).get(files.CHECKSUM, "")
    return ""


class TensorWriter(AbstractContextManager["TensorWriter"]):
    """Writes tensors that grow by rows on disk.

    Until `finish` they are in unnamed temporary files beside `path`, so that the disk, not the
    memory, holds them twice for a moment. Nothing is left behind when something fails.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = files.as_path(path)
        files.check_target(self.path)
        self._files: dict[str, IO[bytes]] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._shapes: dict[str, list[int]] = {}
        self._hashes: dict[str, Any] = {}
        self._open = ExitStack()

    def __exit__(self, *exception: object) -> None:
        with suppress(OSError):  # flushing to a full disk; the content is discarded anyway
            self._open.close()

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Append rows `[rows, ...]` to every tensor."""
        if not is_main():
            return
        with file_errors(f"write {self.path}"):
            for name, tensor in tensors.items():
                self._append(name, tensor.detach().cpu())

    def _append(self, name: str, rows: Tensor) -> None:
        if name not in self._files:
            file = tempfile.TemporaryFile(dir=self.path.parent)  # noqa: SIM115
            self._files[name] = self._open.enter_context(file)
            self._dtypes[name], self._shapes[name] = rows.dtype, list(rows.shape)
            self._hashes[name] = hashlib.sha256()
        elif (rows.dtype, [*rows.shape[1:]]) != (self._dtypes[name], self._shapes[name][1:]):
            raise FileError(
                f"cannot write {self.path}: the batches have '{name}' in different types or shapes."
            )
        else:
            self._shapes[name][0] += len(rows)
        content = raw_bytes(rows)
        self._files[name].write(content)
        self._hashes[name].update(content)

    def finish(self, kind: str, version: int, about: Any) -> None:
        """Write the file, atomically."""
        # the format wants tensors without gaps; the widest dtype first keeps all of them aligned
        order = sorted(self._files, key=lambda name: (-self._dtypes[name].itemsize, name))
        entries, digests, end = {}, {}, 0
        for name in order:
            start, end = end, end + self._files[name].tell()
            dtype, shape = self._dtypes[name], self._shapes[name]
            entries[name] = {"dtype": _DTYPES[dtype], "shape": shape, "data_offsets": [start, end]}
            digests[name] = [str(dtype), shape, self._hashes[name].hexdigest()]
        metadata = {"kind": kind, "version": str(version), "about": json.dumps(about)}
        metadata[files.CHECKSUM] = files.digest_of({"metadata": metadata, "tensors": digests})
        header = json.dumps({"__metadata__": metadata, **entries}).encode()
        header += b" " * (-len(header) % 8)
        with files.replacing(self.path) as temporary, temporary.open("wb") as out:
            out.write(len(header).to_bytes(8, "little") + header)
            for name in order:
                self._files[name].seek(0)
                shutil.copyfileobj(self._files[name], out, 2**20)


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor on the CPU, in row-major order."""
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def _digest(tensor: Tensor) -> list[Any]:
    """The dtype, shape and SHA-256 of a tensor on the CPU; a mapped one is read in slices."""
    digest = hashlib.sha256()
    for piece in tensor.split(1000) if tensor.ndim else (tensor,):
        digest.update(raw_bytes(piece))
    return [str(tensor.dtype), list(tensor.shape), digest.hexdigest()]


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that numbers in files depend on."""
    found = {"nac_openood": __version__, "python": platform.python_version()}
    others = ("numpy", "torchvision", "scikit-learn", "pillow")
    return {**found, "torch": torch.__version__, **{name: version(name) for name in others}}
