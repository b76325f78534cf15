"""Patches that let OpenOOD run on NumPy 2, on new Pythons and without a GPU.

Nothing is patched on import: `compat()` applies the patches that this machine needs around a block.
OpenOOD's files are not changed. Only the calls that OpenOOD makes are patched, so that others are
not slowed down.
"""

from __future__ import annotations

import functools
import multiprocessing
import sys
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Iterator

import numpy as np
import torch

#: The names of the patches that are applied now.
applied: set[str] = set()


@contextmanager
def compat(on_cpu: bool = False) -> Iterator[tuple[str, ...]]:
    """Apply the patches that are needed until the block ends; earlier patches stay.

    Args:
        on_cpu: keep OpenOOD on the CPU even if there is a GPU.

    Yields:
        The names of the patches that are applied in this block and not before.
    """
    patches = {
        "numpy-names": (bool(_missing_in_numpy()), _add_numpy_names),
        "fork-workers": (sys.platform == "linux" and _start_method() != "fork", _fork_workers),
        "cuda-to-cpu": (on_cpu or not torch.cuda.is_available(), _use_cpu),
    }
    new = [name for name, (needed, _) in patches.items() if needed and name not in applied]
    with ExitStack() as undo:
        for name in new:
            undo.callback(applied.remove, name)
            applied.add(name)
            patches[name][1](undo)
        yield tuple(new)


def replace_attribute(owner: Any, name: str, value: Any, undo: ExitStack) -> None:
    """Set an attribute until `undo` is closed."""
    if name in vars(owner):
        undo.callback(setattr, owner, name, vars(owner)[name])
    else:
        undo.callback(delattr, owner, name)
    setattr(owner, name, value)


# ---- names that NumPy dropped: imgaug, which OpenOOD imports, reads np.sctypes; OpenOOD itself
# uses np.float (ECE evaluator), np.int (CutMix) and np.product (PatchCore)

_NUMPY_NAMES = {
    "sctypes": {
        "int": [np.int8, np.int16, np.int32, np.int64],
        "uint": [np.uint8, np.uint16, np.uint32, np.uint64],
        "float": [np.float16, np.float32, np.float64, np.longdouble],
        "complex": [np.complex64, np.complex128, np.clongdouble],
        "others": [bool, object, bytes, str, np.void],
    },
    "float": float,
    "int": int,
    "product": np.prod,
}


def _missing_in_numpy() -> list[str]:
    return [name for name in _NUMPY_NAMES if name not in vars(np)]


def _add_numpy_names(undo: ExitStack) -> None:
    for name in _missing_in_numpy():
        replace_attribute(np, name, _NUMPY_NAMES[name], undo)


# ---- OpenOOD's scripts have no __main__ guard, so workers that are not forked run them again


def _start_method() -> str:
    # the first of the list is Python's default
    method = multiprocessing.get_start_method(allow_none=True)
    return method or multiprocessing.get_all_start_methods()[0]


def _fork_workers(undo: ExitStack) -> None:
    before = multiprocessing.get_start_method(allow_none=True)
    undo.callback(multiprocessing.set_start_method, before, force=True)
    multiprocessing.set_start_method("fork", force=True)


# ---- OpenOOD calls .cuda() and allocates on 'cuda' even if there is no GPU


def _use_cpu(undo: ExitStack) -> None:
    for owner in (torch.Tensor, torch.nn.Module):
        replace_attribute(owner, "cuda", lambda self, *args, **kwargs: self, undo)
    replace_attribute(torch.Tensor, "to", _without_cuda(torch.Tensor.to), undo)
    for name in ("ones", "eye"):
        replace_attribute(torch, name, _without_cuda(getattr(torch, name)), undo)
    # MDSEns and GMM use this type; a class, because OpenOOD's networks use it in `isinstance`
    made = type("FloatTensor", (), {"__new__": lambda cls, *args: torch.FloatTensor(*args)})
    replace_attribute(torch.cuda, "FloatTensor", made, undo)
    load = torch.load

    def load_on_cpu(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        location = "cpu" if map_location is None else _on_cpu(map_location)
        return load(f, location, *args, **kwargs)

    replace_attribute(torch, "load", load_on_cpu, undo)


def _on_cpu(device: Any) -> Any:
    """The CPU for a CUDA device, however it is spelled; anything else unchanged."""
    is_device = isinstance(device, (str, torch.device))
    return "cpu" if is_device and torch.device(device).type == "cuda" else device


def _without_cuda(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = _on_cpu(kwargs["device"])
        return function(*map(_on_cpu, args), **kwargs)

    return call
