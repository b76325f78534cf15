"""Checksums inside our files, by which damage is noticed wherever it happened.

A flipped bit in a count or in a digit of a JSON number leaves a file that looks all right. So each
file holds a SHA-256 of everything else in it. This finds damage; it is no protection against
somebody who changes a file on purpose and computes the checksum again.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Mapping, NamedTuple, Sequence

import torch
from torch import Tensor

from nac_openood.errors import FileError

#: The entry of a document, or of a file's metadata, that holds the checksum.
SEAL = "sha256"


class SealedPart(NamedTuple):
    """What the checksum of a file depends on of one tensor; `digest` is that of its bytes."""

    dtype: str
    shape: Sequence[int]
    digest: str

    @classmethod
    def of(cls, tensor: Tensor) -> SealedPart:
        """The part of a tensor on the CPU; a mapped one is read slice by slice."""
        digest = hashlib.sha256()
        for piece in tensor.split(1000) if tensor.ndim else (tensor,):
            digest.update(raw_bytes(piece))
        return cls(str(tensor.dtype), tuple(tensor.shape), digest.hexdigest())


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor on the CPU, in row-major order."""
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def seal_of(metadata: Mapping[str, str], parts: Mapping[str, SealedPart]) -> str:
    """The checksum of a file of tensors.

    Args:
        metadata: all of it but the checksum itself.
        parts: of every tensor, by name.
    """
    listed = {name: [p.dtype, list(p.shape), p.digest] for name, p in parts.items()}
    return _digest({"metadata": dict(metadata), "tensors": listed})


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its checksum as the last entry."""
    plain = json.loads(json.dumps(document))  # as it will be read: tuples become lists
    return {**plain, SEAL: _digest(plain)}


def unsealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The object without its checksum; objects of early versions have none.

    Raises:
        FileError: if the checksum is that of something else.
    """
    content = {name: value for name, value in document.items() if name != SEAL}
    if SEAL in document and document[SEAL] != _digest(content):
        raise FileError("its content does not match its checksum")
    return content


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
