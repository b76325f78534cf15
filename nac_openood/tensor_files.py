"""Files of tensors and a JSON value (safetensors), written atomically, with a checksum.

`write_tensors` writes tensors that are in memory; `TensorWriter` appends rows batch by batch, so
that only one batch is in memory. `read_tensors` reads both.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import tempfile
from contextlib import ExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Mapping

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from nac_openood.__about__ import __version__
from nac_openood.distributed import is_main
from nac_openood.errors import FileError, why_unreadable
from nac_openood.files import (
    CHECKSUM,
    PathLike,
    check_encoding,
    check_target,
    digest_of,
    is_file,
    newer_format,
    parse_json,
    replacing,
)

#: What the checksum depends on for one tensor: its dtype, shape and the SHA-256 of its bytes.
TensorDigest = list[Any]
#: Names of dtypes in the safetensors format.
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.uint8: "U8",
}


def write_tensors(
    path: PathLike, kind: str, version: int, tensors: dict[str, Tensor], about: Any
) -> None:
    """Write tensors and the JSON value `about`; equal content makes equal files."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    digests = {name: tensor_digest(tensor) for name, tensor in on_cpu.items()}
    with replacing(path) as temporary, temporary.open("wb") as out:
        # the library writes metadata in random order, so it is added here
        content = memoryview(save(on_cpu))
        end = 8 + int.from_bytes(content[:8], "little")
        out.write(_header(kind, version, about, digests, json.loads(bytes(content[8:end]))))
        out.write(content[end:])


def read_tensors(
    path: PathLike, kind: str, version: int
) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
    """Read a file of tensors; they are memory-mapped, on the CPU.

    The file is read once, piece by piece, to verify its checksum, which early files do not have.

    Raises:
        FileError: the file is missing, damaged, of another kind or of a newer version.
    """
    check_encoding(path)
    try:
        if not is_file(path):
            raise FileError(f"there is no file {path}.")
        Path(path).open("rb").close()  # safetensors calls a file missing that may not be read
        with safe_open(str(path), framework="pt") as opened:
            metadata = opened.metadata() or {}
            _check_metadata(path, metadata, kind, version)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except OSError as error:
        raise FileError(f"cannot read {path}: {why_unreadable(error)}.") from error
    except SafetensorError as error:
        raise FileError(f"{path} is damaged or not a safetensors file ({error}).") from error
    checksum = metadata.pop(CHECKSUM, None)
    if checksum is not None:
        digests = {name: tensor_digest(tensor) for name, tensor in tensors.items()}
        if checksum != file_checksum(metadata, digests):
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
            return (opened.metadata() or {}).get(CHECKSUM, "")
    except (SafetensorError, OSError):
        return ""


class TensorWriter:
    """Writes tensors that grow by rows on disk.

    Until `finish` they are in unnamed temporary files beside `path`, so that the disk, not the
    memory, holds them twice for a moment. Nothing is left behind when something fails.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        check_target(self.path)
        self._files: dict[str, IO[bytes]] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._shapes: dict[str, list[int]] = {}
        self._hashes: dict[str, Any] = {}
        self._open = ExitStack()

    def __enter__(self) -> TensorWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(OSError):  # flushing to a full disk; the content is discarded anyway
            self._open.close()

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Append rows `[rows, ...]` to every tensor."""
        if not is_main():
            return
        try:
            for name, tensor in tensors.items():
                self._append(name, tensor.detach().cpu().contiguous())
        except OSError as error:
            raise FileError(f"cannot write {self.path}: {error}.") from error

    def _append(self, name: str, rows: Tensor) -> None:
        if name not in self._files:
            file = tempfile.TemporaryFile(dir=self.path.parent)  # noqa: SIM115
            self._files[name] = self._open.enter_context(file)
            self._dtypes[name], self._shapes[name] = rows.dtype, [0, *rows.shape[1:]]
            self._hashes[name] = hashlib.sha256()
        shape = self._shapes[name]
        if rows.dtype != self._dtypes[name] or list(rows.shape[1:]) != shape[1:]:
            raise FileError(
                f"cannot write {self.path}: '{name}' began as {self._dtypes[name]} {shape[1:]} and "
                f"goes on as {rows.dtype} {list(rows.shape[1:])}."
            )
        content = raw_bytes(rows)
        self._files[name].write(content)
        self._hashes[name].update(content)
        shape[0] += rows.shape[0]

    def finish(self, kind: str, version: int, about: Any) -> None:
        """Write the file, atomically."""
        # the format wants tensors without gaps; the widest dtype first keeps all of them aligned
        order = sorted(self._files, key=lambda name: (-self._dtypes[name].itemsize, name))
        entries, end = {}, 0
        for name in order:
            start, end = end, end + self._files[name].tell()
            dtype, shape = _DTYPES[self._dtypes[name]], self._shapes[name]
            entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        digests = {
            name: [str(self._dtypes[name]), self._shapes[name], self._hashes[name].hexdigest()]
            for name in self._files
        }
        with replacing(self.path) as temporary, temporary.open("wb") as out:
            out.write(_header(kind, version, about, digests, entries))
            for name in order:
                self._files[name].seek(0)
                shutil.copyfileobj(self._files[name], out, 2**20)


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor on the CPU, in row-major order."""
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def tensor_digest(tensor: Tensor) -> TensorDigest:
    """The digest of a tensor on the CPU; a memory-mapped one is read slice by slice."""
    digest = hashlib.sha256()
    for piece in tensor.split(1000) if tensor.ndim else (tensor,):
        digest.update(raw_bytes(piece))
    return [str(tensor.dtype), list(tensor.shape), digest.hexdigest()]


def file_checksum(metadata: Mapping[str, str], digests: Mapping[str, TensorDigest]) -> str:
    """The checksum of a file, from its other metadata and the digests of its tensors."""
    return digest_of({"metadata": dict(metadata), "tensors": dict(digests)})


def _header(
    kind: str,
    version: int,
    about: Any,
    digests: Mapping[str, TensorDigest],
    entries: Mapping[str, Any],
) -> bytes:
    """The beginning of a safetensors file: its length, and JSON padded so that tensors align."""
    metadata = {"kind": kind, "version": str(version), "about": json.dumps(about)}
    metadata[CHECKSUM] = file_checksum(metadata, digests)
    text = json.dumps({"__metadata__": metadata, **entries}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _check_metadata(path: PathLike, metadata: Mapping[str, str], kind: str, version: int) -> None:
    found = metadata.get("kind")
    if found != kind:
        raise FileError(f"{path} holds {found or 'something unknown'}, expected {kind}.")
    if re.fullmatch("[0-9]{1,9}", metadata.get("version", "")) is None:
        raise FileError(f"{path} is damaged: it names no format version.")
    if int(metadata["version"]) > version:
        raise FileError(newer_format(path, int(metadata["version"]), version))
    if set(metadata) - {CHECKSUM} != {"kind", "version", "about"}:
        raise FileError(f"{path} is damaged: its metadata has the entries {sorted(metadata)}.")


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that numbers in files depend on."""
    others = {name: version(name) for name in ("torchvision", "scikit-learn", "pillow")}
    return {
        "nac_openood": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        **others,
    }
