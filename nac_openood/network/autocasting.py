"""In which precision a network is run, whatever precision its caller is in."""

from __future__ import annotations

from contextlib import nullcontext
from typing import ContextManager, Optional

import torch
from torch import nn

from nac_openood.errors import NACError
from nac_openood.network.inputs import device_of

#: The precisions that a network may be cast to, with their names in files.
PRECISIONS = {torch.bfloat16: "bfloat16", torch.float16: "float16"}


def checked_autocast(dtype: Optional[torch.dtype]) -> Optional[torch.dtype]:
    """The precision to cast to; None is the network's own."""
    if dtype is not None and dtype not in list(PRECISIONS):
        raise NACError(
            f"`autocast` must be torch.bfloat16, torch.float16 or None, got {dtype!r}. None runs "
            "the network in its own precision."
        )
    return dtype


def autocast_to(net: nn.Module, dtype: Optional[torch.dtype]) -> ContextManager[object]:
    """A context in which the network is run in this precision.

    Args:
        net: the network, on its device.
        dtype: what `torch.autocast` casts to; None turns it off, also where the caller is inside
            `torch.autocast`.
    """
    kind = device_of(net).type
    if not torch.amp.is_autocast_available(kind):
        return nullcontext()
    if dtype is None:
        off = not torch.is_autocast_enabled(kind)
        return nullcontext() if off else torch.autocast(kind, enabled=False)
    return torch.autocast(kind, dtype=dtype)
