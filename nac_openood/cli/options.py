"""Options that several commands have: their names, help texts and checks."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Optional

from nac_openood.errors import NACError

if TYPE_CHECKING:
    from torch import nn

# The names that options accept, here because their homes import torch. tests/test_cli.py checks
# that they are the names of the tables at home.
STRATEGIES = ("grid", "layerwise", "random")
OBJECTIVES = ("auroc", "fpr95", "mean")


def add_loading(group: argparse._ArgumentGroup) -> None:
    """Add the options that say how images are loaded and where the network runs."""
    group.add_argument(
        "--batch-size", type=int, metavar="N", help="images per batch (default: 100)"
    )
    group.add_argument(
        "--workers", type=int, metavar="N",
        help="processes that load images (default: 0, load them in the main process)",
    )  # fmt: skip
    group.add_argument(
        "--device", metavar="NAME", help="cpu, cuda, cuda:1, ... (default: cuda if available)"
    )


def add_seed(group: argparse._ActionsContainer) -> None:
    """Add the option for the random seed."""
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="random seed (default: %(default)s)"
    )


def on_device(net: nn.Module, name: Optional[str]) -> nn.Module:
    """Move a network to the device of that name, by default to a GPU if there is one."""
    import torch

    device = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        if chosen.type == "cuda" and chosen.index is not None:
            torch.cuda.set_device(chosen)  # where OpenOOD's bare .cuda() goes as well
        return net.to(chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise NACError(f"--device: cannot use '{device}' ({reason}). Try --device cpu.") from error


def at_least(name: str, value: object, default: int, least: int) -> int:
    """A number that is large enough, or the default if none was given."""
    number = default if value is None else int(str(value))
    if number < least:
        raise NACError(f"`{name}` must be at least {least}, got {number}.")
    return number


def option(name: str) -> str:
    """`--batch-size` of `batch_size`."""
    return "--" + name.replace("_", "-")
