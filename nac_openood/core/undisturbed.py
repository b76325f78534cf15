"""Work with somebody's network and leave no trace."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import Iterator, Optional

import numpy as np
import torch
from torch import nn


@contextmanager
def undisturbed(net: nn.Module, seed: Optional[int] = None) -> Iterator[None]:
    """Put `net` in eval mode and, on every exit, everything back as it was.

    That is each module's own train/eval flag (a net may be half frozen) and the random states of
    torch, CUDA, NumPy and Python, which loaders and dropout advance.

    Args:
        net: the network.
        seed: what random draws inside the block begin with; None leaves them as they are.
    """
    training = [module for module in net.modules() if module.training]
    torch_state, numpy_state, python_state = (
        torch.get_rng_state(),
        np.random.get_state(),
        random.getstate(),
    )
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        for module in training:
            module.training = False
        if seed is not None:
            _seed_all(seed)
        yield
    finally:
        for module in training:
            module.training = True
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        if cuda_states is not None:
            torch.cuda.set_rng_state_all(cuda_states)


@contextmanager
def frozen(net: nn.Module) -> Iterator[None]:
    """No gradient reaches the parameters of `net` inside the block; those of inputs flow."""
    free = [p for p in net.parameters() if p.requires_grad]
    try:
        for parameter in free:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in free:
            parameter.requires_grad_(True)


def _seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
