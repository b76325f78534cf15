"""The checkpoints to rank: their names, their order, and how to make their networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from torch import nn

from nac_openood.errors import NACError
from nac_openood.sources.checkpoints import Checkpoint, training_step
from nac_openood.sources.sets import check_file_names

Networks = Union[Mapping[str, Any], Sequence[Any]]


def networks_of(
    given: Networks, load: Optional[Callable[[str], nn.Module]]
) -> tuple[list[Checkpoint], Callable[[Checkpoint], nn.Module]]:
    """The checkpoints in the order of training, and a function that makes their networks.

    Args:
        given: two or more paths or modules, in a list or by name.
        load: makes a network from the path of a checkpoint.

    Raises:
        NACError: if there are fewer than two, or paths without `load`.
    """
    entries = list(given.values()) if isinstance(given, Mapping) else list(given)
    names = list(given) if isinstance(given, Mapping) else _names(entries)
    check_file_names("a checkpoint", names)
    if len(entries) < 2:
        raise NACError(
            f"expected at least two checkpoints to rank, got {len(entries)}: the rank correlation "
            "of one is undefined. For the coverage of a single network use coverage_integral."
        )
    if load is None and not all(isinstance(entry, nn.Module) for entry in entries):
        raise NACError(
            "to rank checkpoint files, pass `load`: a function that makes a network from the path "
            "of a checkpoint. Or pass the networks themselves."
        )
    modules = {n: entry for n, entry in zip(names, entries) if isinstance(entry, nn.Module)}
    paths = [type(e).__name__ if isinstance(e, nn.Module) else str(e) for e in entries]
    runs = [Checkpoint(name, path) for name, path in zip(names, paths)]
    steps = [None if run.name in modules else training_step(run.path) for run in runs]
    if all(step is not None for step in steps):
        runs = [run for _, run in sorted(zip(steps, runs), key=lambda pair: pair[0] or 0)]

    def network(run: Checkpoint) -> nn.Module:
        return modules[run.name] if run.name in modules else load(run.path)  # type: ignore[misc]

    return runs, network


def _names(entries: Sequence[Any]) -> list[str]:
    names = [
        f"{type(entry).__name__}-{number}" if isinstance(entry, nn.Module) else Path(entry).stem
        for number, entry in enumerate(entries)
    ]
    repeated = len(set(names)) < len(names)
    return [f"{i}-{name}" for i, name in enumerate(names)] if repeated else names
