"""Work with somebody's network and leave no trace."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import Iterator

import numpy as np
import torch
from torch import nn


@contextmanager
def undisturbed(net: nn.Module) -> Iterator[None]:
    """Put `net` in eval mode and, on every exit, everything back as it was.

    That is each module's own train/eval flag (a net may be half frozen) and the random states of
    torch, CUDA, NumPy and Python, which loaders and dropout advance.
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
        yield
    finally:
        for module in training:
            module.training = True
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        if cuda_states is not None:
            torch.cuda.set_rng_state_all(cuda_states)
