"""Options that several commands have, and how they are checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from nac_openood.errors import NACError

if TYPE_CHECKING:
    from torch import nn


def on_device(net: nn.Module, name: Optional[str]) -> nn.Module:
    """The network on the device of that name, by default a GPU where there is one."""
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
    """A number, or the default where none was given."""
    number = default if value is None else int(str(value))
    if number < least:
        raise NACError(f"{option(name)} must be at least {least}, got {number}.")
    return number


def option(name: str) -> str:
    """`--batch-size` of `batch_size`."""
    return "--" + name.replace("_", "-")
