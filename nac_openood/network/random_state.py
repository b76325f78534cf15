"""Draw random numbers without changing the caller's generators."""

from __future__ import annotations

import random
import threading
from contextlib import contextmanager
from typing import Iterator, Optional

import numpy as np
import torch
from torch import Tensor


@contextmanager
def kept_random_state(seed: Optional[int] = None) -> Iterator[None]:
    """Restore the generators of torch, CUDA, NumPy and Python when the block ends.

    All threads of a process share these generators. Other threads may have drawn in the meantime,
    and restoring the generators would make them draw the same numbers again: then the states are
    left alone, unless the block seeded them. Daemon threads do not count.

    Args:
        seed: seeds the generators for the block; None continues from the current states.
    """
    saved, numpy_state, python_state = torch_states(), np.random.get_state(), random.getstate()
    try:
        if seed is not None:
            seed_all(seed)
        yield
    finally:
        if seed is not None or not _other_threads():
            torch.set_rng_state(saved[0])
            if len(saved) > 1:
                torch.cuda.set_rng_state_all(saved[1:])
            np.random.set_state(numpy_state)
            random.setstate(python_state)


def torch_states() -> list[Tensor]:
    """The states of torch's generators, the CPU's first."""
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *on_gpu]


def seed_all(seed: int) -> None:
    """Seed the generators of torch, CUDA, NumPy and Python."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _other_threads() -> bool:
    here = threading.current_thread()
    return any(thread is not here and not thread.daemon for thread in threading.enumerate())
