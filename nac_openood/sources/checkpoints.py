"""Finds checkpoints: files, folders, or a results folder of OpenOOD with several runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from torch import nn

from nac_openood.errors import NACError
from nac_openood.network.replica import unwrap
from nac_openood.paths import entries, is_file, is_folder

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
    return _named(found)


def run_checkpoints(given: Sequence[Union[str, Path]]) -> list[Checkpoint]:
    """All checkpoints of a training run, in the order of their steps.

    Args:
        given: files, or folders with files such as `step_300.pt` or `model_step300.pkl`.
    """
    found: list[str] = []
    for entry in map(Path, given):
        inside = [entry] if is_file(entry) else _inside(entry)
        found += [str(path) for path in inside]
    return by_step(_named(found))


def by_step(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Checkpoints in the order of their steps, or as they are if some have none."""
    if any(training_step(each) is None for each in checkpoints):
        return list(checkpoints)
    return sorted(checkpoints, key=lambda each: training_step(each) or 0)


def distinct(names: Sequence[str]) -> list[str]:
    """The names, numbered if any is there twice, as `s0` of two folders."""
    repeated = len(set(names)) < len(names)
    return [f"{i}-{name}" for i, name in enumerate(names)] if repeated else list(names)


def networks_by_name(
    named: Mapping[str, Any], load: Optional[Callable[[str], nn.Module]], verb: str
) -> tuple[list[Checkpoint], Callable[[Checkpoint], nn.Module]]:
    """Networks that were given as modules or paths, and a function that makes them.

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
    kinds = {name: type(unwrap(net)).__name__ for name, net in modules.items()}

    def network(checkpoint: Checkpoint) -> nn.Module:
        known = modules.get(checkpoint.name)
        return load(checkpoint.path) if known is None else known  # type: ignore[misc]

    return [Checkpoint(name, kinds.get(name, str(net))) for name, net in named.items()], network


def training_step(checkpoint: Checkpoint) -> Optional[int]:
    """The number at the end of a checkpoint's name, 300 of `model_step300.pkl`, or None.

    That of a network that was given as a module is in its own name: its path is that of a class.
    """
    path = Path(checkpoint.path)
    number = re.search(r"(\d+)$", path.stem if path.suffix else checkpoint.name)
    return None if number is None else int(number[1])


def _inside(folder: Path) -> list[Path]:
    if not is_folder(folder):
        raise NACError(f"there is no checkpoint {folder}.")
    found = [p for p in entries(folder) if p.suffix in _SUFFIXES and is_file(p)]
    if not found:
        raise NACError(
            f"{folder} holds no checkpoints: expected files that end in {', '.join(_SUFFIXES)}."
        )
    return found


def _expand(entry: str) -> list[str]:
    path = Path(entry)
    if entry.startswith(PUBLISHED):
        return [entry]
    if not is_folder(path):
        return [entry] if is_file(path) else _missing(path)
    runs = sorted(path.glob(f"s*/{_BEST}"), key=lambda p: (len(p.parent.name), p.parent.name))
    inside = runs or ([path / _BEST] if is_file(path / _BEST) else [])
    return [str(p) for p in inside] or _missing(path)


def _missing(path: Path) -> list[str]:
    if is_folder(path):
        others = sorted(p.name for p in path.glob("*.ckpt"))
        told = f" Name one of its files: {', '.join(others)}." if others else ""
        raise NACError(f"{path} holds neither s*/{_BEST} nor {_BEST}.{told}")
    raise NACError(f"there is no checkpoint {path}.")


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
