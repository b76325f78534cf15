"""The checkpoints to rank: their names, their order, and how to make their networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from torch import nn

from nac_openood.errors import NACError
from nac_openood.sources.checkpoints import Checkpoint, by_step, distinct, networks_by_name
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
    named = dict(given) if isinstance(given, Mapping) else _named(given)
    check_file_names("a checkpoint", named)
    if len(named) < 2:
        raise NACError(
            f"expected at least two checkpoints to rank, got {len(named)}: the rank correlation of "
            "one is undefined. For the coverage of a single network use coverage_integral."
        )
    checkpoints, network = networks_by_name(named, load, "rank")
    if not any(isinstance(entry, nn.Module) for entry in named.values()):
        checkpoints = by_step(checkpoints)
    return checkpoints, network


def _named(entries: Sequence[Any]) -> dict[str, Any]:
    names = [
        f"{type(entry).__name__}-{number}" if isinstance(entry, nn.Module) else Path(entry).stem
        for number, entry in enumerate(entries)
    ]
    return dict(zip(distinct(names), entries))
