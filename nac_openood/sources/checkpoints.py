"""Finds checkpoints: files, folders, or a results folder of OpenOOD with several runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Sequence, Union

from nac_openood.errors import NACError

_BEST = "best.ckpt"
_SUFFIXES = (".pt", ".pth", ".ckpt", ".pkl")
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


def run_checkpoints(given: Sequence[Union[str, Path]]) -> list[Checkpoint]:
    """All checkpoints of a training run, in the order of their steps.

    Args:
        given: files, or folders with files such as `step_300.pt` or `model_step300.pkl`.
    """
    found: list[str] = []
    for entry in map(Path, given):
        inside = [entry] if entry.is_file() else _inside(entry)
        found += [str(path) for path in inside]
    names = [_name(path) for path in found]
    if len(set(names)) < len(names):
        names = [f"{i}-{name}" for i, name in enumerate(names)]
    runs = [Checkpoint(name, path) for name, path in zip(names, found)]
    steps = [training_step(run.path) for run in runs]
    if any(step is None for step in steps):
        return runs
    return [run for _, run in sorted(zip(steps, runs), key=lambda pair: pair[0] or 0)]


def training_step(path: str) -> Optional[int]:
    """The number at the end of a checkpoint's name, 300 of `model_step300.pkl`, or None."""
    number = re.search(r"(\d+)$", Path(path).stem)
    return None if number is None else int(number[1])


def _inside(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise NACError(f"there is no checkpoint {folder}.")
    found = sorted(p for p in folder.iterdir() if p.suffix in _SUFFIXES and p.is_file())
    if not found:
        raise NACError(
            f"{folder} holds no checkpoints: expected files that end in {', '.join(_SUFFIXES)}."
        )
    return found


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
