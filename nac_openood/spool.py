"""A safetensors file that grows batch by batch, so that only the batch at hand is in memory."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Mapping

import torch
from torch import Tensor

from nac_openood import files
from nac_openood.distributed import is_main
from nac_openood.errors import FileError
from nac_openood.seals import SealedPart, raw_bytes

#: Names of the safetensors format for what readings consist of.
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.uint8: "U8",
}


@dataclass
class _Growing:
    file: IO[bytes]
    dtype: torch.dtype
    shape: list[int]
    digest: Any = field(default_factory=hashlib.sha256)


class Spool:
    """Tensors that grow by rows on disk and become one file that `files.read` reads.

    While they grow they lie in nameless temporary files beside `path`; `finish` copies them into
    place, so for a moment the disk, not the memory, holds them twice. Nothing is left behind when
    anything fails.
    """

    def __init__(self, path: files.PathLike) -> None:
        self.path = Path(path)
        files.check_target(self.path)
        self._parts: dict[str, _Growing] = {}
        self._files = ExitStack()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *exception: object) -> None:
        # what a full disk still holds back need not be written: it is thrown away now
        with suppress(OSError):
            self._files.close()

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Append rows `[rows, ...]` to every tensor."""
        if not is_main():
            return
        try:
            for name, tensor in tensors.items():
                self._append(name, tensor.detach().cpu().contiguous())
        except OSError as error:
            raise FileError(f"cannot write {self.path}: {error}.") from error

    def finish(self, kind: str, version: int, about: Any) -> None:
        """Write the file, atomically."""
        parts = {
            name: SealedPart(str(part.dtype), part.shape, part.digest.hexdigest())
            for name, part in self._parts.items()
        }
        header: dict[str, Any] = {"__metadata__": files.metadata_of(kind, version, about, parts)}
        # the format wants tensors without gaps; the widest type first keeps all of them aligned
        order = sorted(self._parts, key=lambda n: (-self._parts[n].dtype.itemsize, n))
        end = 0
        for name in order:
            part = self._parts[name]
            start, end = end, end + part.file.tell()
            dtype = _DTYPES[part.dtype]
            header[name] = {"dtype": dtype, "shape": part.shape, "data_offsets": [start, end]}
        with files.replacing(self.path) as temporary, temporary.open("wb") as out:
            out.write(files.header_bytes(header))
            for name in order:
                self._parts[name].file.seek(0)
                shutil.copyfileobj(self._parts[name].file, out, 2**20)

    def _append(self, name: str, rows: Tensor) -> None:
        if name not in self._parts:
            file = tempfile.TemporaryFile(dir=self.path.parent)  # noqa: SIM115
            self._files.enter_context(file)
            self._parts[name] = _Growing(file, rows.dtype, [0, *rows.shape[1:]])
        part = self._parts[name]
        if rows.dtype != part.dtype or list(rows.shape[1:]) != part.shape[1:]:
            raise FileError(
                f"cannot write {self.path}: '{name}' began as {part.dtype} {part.shape[1:]} and "
                f"goes on as {rows.dtype} {list(rows.shape[1:])}."
            )
        content = raw_bytes(rows)
        part.file.write(content)
        part.digest.update(content)
        part.shape[0] += rows.shape[0]
