"""Finds checkpoints: files, folders, or a results folder of OpenOOD with several runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence, Union

from nac_openood.errors import NACError

_BEST = "best.ckpt"
#: Prefix of the names of weights that torchvision publishes.
PUBLISHED = "torchvision:"


@dataclass(frozen=True)
class Checkpoint:
    """The weights of a run: a file, or published ones such as `torchvision:IMAGENET1K_V1`."""

    name: str
    path: str


def find_checkpoints(given: Sequence[Union[str, Path]]) -> list[Checkpoint]:
    """The checkpoints in the given files and folders, each with its own name.

    A folder stands for the `best.ckpt` of its runs `s0`, `s1`, ... or for its own `best.ckpt`.
    """
    found = [path for entry in given for path in _expand(str(entry))]
    if not found:
        raise NACError("expected at least one checkpoint, got none.")
    names = [_name(path) for path in found]
    if len(set(names)) < len(names):  # s0 of two folders, say
        names = [f"{i}-{name}" for i, name in enumerate(names)]
    return [Checkpoint(name, path) for name, path in zip(names, found)]


def _expand(entry: str) -> list[str]:
    path = Path(entry)
    if entry.startswith(PUBLISHED):
        return [entry]
    if not path.is_dir():
        return [entry] if path.is_file() else _missing(path)
    runs = sorted(path.glob(f"s*/{_BEST}"), key=lambda p: (len(p.parent.name), p.parent.name))
    inside = runs or ([path / _BEST] if (path / _BEST).is_file() else [])
    return [str(p) for p in inside] or _missing(path)


def _missing(path: Path) -> list[str]:
    if path.is_dir():
        others = sorted(p.name for p in path.glob("*.ckpt"))
        told = f" Name one of its files: {', '.join(others)}." if others else ""
        raise NACError(f"{path} holds neither s*/{_BEST} nor {_BEST}.{told}")
    raise NACError(f"there is no checkpoint {path}.")


def _name(path: str) -> str:
    """A name for a folder of results: `s0` for `.../s0/best.ckpt`, otherwise the file's name."""
    if path.startswith(PUBLISHED):
        return path[len(PUBLISHED) :].lower()
    folder, stem = Path(path).resolve().parent.name, Path(path).stem
    name = folder if stem == Path(_BEST).stem and folder else stem
    return re.sub(r"[^\w.-]", "_", name).lstrip(".") or "run"
