"""Finds checkpoints: files, folders, or a results folder of OpenOOD with several runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from torch import nn

from nac_openood.errors import NACError
from nac_openood.files import entries, is_file, is_folder
from nac_openood.network.replica import unwrap

_BEST = "best.ckpt"
_SUFFIXES = (".pt", ".pth", ".ckpt", ".pkl")
#: Prefix of the names of weights that torchvision publishes.
PUBLISHED = "torchvision:"


@dataclass(frozen=True)
class Checkpoint:
    """The weights of a run: a file, or published ones such as `torchvision:IMAGENET1K_V1`."""

    name: str
    path: str


def find_checkpoints(paths: Sequence[Union[str, Path]]) -> list[Checkpoint]:
    """Find the checkpoints in files and folders, each with its own name.

    A folder stands for the `best.ckpt` of its runs `s0`, `s1`, ... or for its own `best.ckpt`.
    """
    found = [path for entry in paths for path in _best_in(str(entry))]
    if not found:
        raise NACError("expected at least one checkpoint, got none.")
    return _named(found)


def run_checkpoints(paths: Sequence[Union[str, Path]]) -> list[Checkpoint]:
    """Find all checkpoints of a training run, in the order of their steps.

    Args:
        paths: files, or folders with files such as `step_300.pt` or `model_step300.pkl`.
    """
    found: list[str] = []
    for path in map(Path, paths):
        if not is_file(path) and not is_folder(path):
            raise NACError(f"there is no checkpoint {path}.")
        inside = [path] if is_file(path) else [p for p in entries(path) if p.suffix in _SUFFIXES]
        if not inside:
            raise NACError(
                f"{path} holds no checkpoints: expected files that end in {', '.join(_SUFFIXES)}."
            )
        found += map(str, filter(is_file, inside))
    return by_step(_named(found))


def by_step(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Sort checkpoints by their steps; keep their order if some have none."""
    if any(training_step(each) is None for each in checkpoints):
        return list(checkpoints)
    return sorted(checkpoints, key=lambda each: training_step(each) or 0)


def distinct(names: Sequence[str]) -> list[str]:
    """Number the names if any occurs twice, as `s0` of two folders does."""
    repeated = len(set(names)) < len(names)
    return [f"{i}-{name}" for i, name in enumerate(names)] if repeated else list(names)


def networks_by_name(
    named: Mapping[str, Any], load: Optional[Callable[[str], nn.Module]], verb: str
) -> tuple[list[Checkpoint], Callable[[Checkpoint], nn.Module]]:
    """Turn modules and paths into checkpoints, and a function that makes their networks.

    Args:
        named: modules and paths of checkpoints by name.
        load: makes a network from the path of a checkpoint.
        verb: what is done with them, for errors.

    Returns:
        Checkpoints, in which the path of a module is the name of its class.
    """
    modules = {name: net for name, net in named.items() if isinstance(net, nn.Module)}
    if load is None and len(modules) < len(named):
        raise NACError(
            f"to {verb} checkpoint files, pass `load`: a function that makes a network from the "
            "path of a checkpoint. Or pass the networks themselves."
        )
    paths = {**named, **{name: type(unwrap(net)).__name__ for name, net in modules.items()}}

    def network(checkpoint: Checkpoint) -> nn.Module:
        module = modules.get(checkpoint.name)
        return load(checkpoint.path) if module is None else module  # type: ignore[misc]

    return [Checkpoint(name, str(path)) for name, path in paths.items()], network


def training_step(checkpoint: Checkpoint) -> Optional[int]:
    """The number at the end of a checkpoint's name, 300 of `model_step300.pkl`, or None.

    For a network that was passed as a module, it is in the name: the path is that of a class.
    """
    path = Path(checkpoint.path)
    number = re.search(r"(\d+)$", path.stem if path.suffix else checkpoint.name)
    return None if number is None else int(number[1])


def _best_in(entry: str) -> list[str]:
    path = Path(entry)
    if entry.startswith(PUBLISHED) or is_file(path):
        return [entry]
    if not is_folder(path):
        raise NACError(f"there is no checkpoint {path}.")
    runs = sorted(path.glob(f"s*/{_BEST}"), key=lambda p: (len(p.parent.name), p.parent.name))
    best = runs or [p for p in [path / _BEST] if is_file(p)]
    if not best:
        others = sorted(p.name for p in path.glob("*.ckpt"))
        hint = f" Name one of its files: {', '.join(others)}." if others else ""
        raise NACError(f"{path} holds neither s*/{_BEST} nor {_BEST}.{hint}")
    return [str(p) for p in best]


def _named(paths: Sequence[str]) -> list[Checkpoint]:
    names = distinct([_name(path) for path in paths])
    return [Checkpoint(name, path) for name, path in zip(names, paths)]


def _name(path: str) -> str:
    """A name for a folder of results: `s0` for `.../s0/best.ckpt`, otherwise the file's name."""
    if path.startswith(PUBLISHED):
        return path[len(PUBLISHED) :].lower()
    folder, stem = Path(path).resolve().parent.name, Path(path).stem
    name = folder if stem == Path(_BEST).stem and folder else stem
    return re.sub(r"[^\w.-]", "_", name).lstrip(".") or "run"
