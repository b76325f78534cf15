"""Patches that let OpenOOD run on NumPy 2, on new Pythons and without a GPU.

Nothing is patched on import. `apply_compat()` applies those of `PATCHES` that this machine needs,
`remove_compat()` removes them, and `compat()` does both around a block. OpenOOD's files are not
changed: the patches restore names that NumPy dropped, and redirect to the CPU what OpenOOD sends
to a GPU that does not exist.
"""

from __future__ import annotations

import functools
import multiprocessing
import sys
import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional

import numpy as np
import torch
from torch import overrides

from nac_openood.errors import NACError


@dataclass(frozen=True)
class Patch:
    """One change, why it is made and when it is needed.

    Attributes:
        name: its name in `apply_compat` and `remove_compat`.
        reason: what fails without it.
        needed: whether this machine needs it; called when patches are applied.
        apply: makes the change, and registers with the stack it is given how to undo it.
    """

    name: str
    reason: str
    needed: Callable[[], bool]
    apply: Callable[[ExitStack], None]


def apply_compat(on_cpu: bool = False) -> tuple[str, ...]:
    """Apply the patches that are needed and not applied yet, either all of them or none.

    Args:
        on_cpu: keep OpenOOD on the CPU even if there is a GPU.

    Returns:
        The names of the patches applied by this call; pass them to `remove_compat` to remove
        exactly these. A second call applies nothing and returns `()`.
    """
    new: list[str] = []
    try:
        for patch in PATCHES:
            wanted = patch.needed() or (on_cpu and patch.needed is _no_gpu)
            if patch.name not in applied and wanted:
                applied[patch.name] = ExitStack()
                new.append(patch.name)
                patch.apply(applied[patch.name])
    except BaseException:
        remove_compat(new)
        raise
    return tuple(new)


def remove_compat(names: Optional[Iterable[str]] = None) -> None:
    """Remove the patches `names` (default: all), the latest first."""
    known = [patch.name for patch in PATCHES]
    wanted = set(known if names is None else names)
    if wanted - set(known):
        raise NACError(
            f"Expected names of compat patches, {', '.join(known)}, but got "
            f"{', '.join(sorted(wanted - set(known)))}. Pass what apply_compat() returned."
        )
    for patch in reversed(PATCHES):
        if patch.name in wanted and patch.name in applied:
            applied.pop(patch.name).close()


@contextmanager
def compat(on_cpu: bool = False) -> Iterator[tuple[str, ...]]:
    """Apply what is needed until the block ends; patches applied before it stay."""
    names = apply_compat(on_cpu)
    try:
        yield names
    finally:
        remove_compat(names)


def _no_gpu() -> bool:
    return not torch.cuda.is_available()


# ---- names that NumPy dropped

_SCTYPES = {
    "int": [np.int8, np.int16, np.int32, np.int64],
    "uint": [np.uint8, np.uint16, np.uint32, np.uint64],
    "float": [np.float16, np.float32, np.float64, np.longdouble],
    "complex": [np.complex64, np.complex128, np.clongdouble],
    "others": [bool, object, bytes, str, np.void],
}
_ALIASES = {"float": float, "int": int, "product": np.prod}


def _missing(names: Iterable[str]) -> list[str]:
    """Those of `names` that NumPy lacks; NumPy 1.20 to 1.23 warn when asked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [name for name in names if not hasattr(np, name)]


def _add_to_numpy(values: Mapping[str, Any], undo: ExitStack) -> None:
    for name in _missing(values):
        setattr(np, name, values[name])
        undo.callback(delattr, np, name)


# ---- no GPU


def _on_cpu(device: Any) -> Any:
    """Replace a CUDA device, however it is spelled, by the CPU; return anything else unchanged."""
    if isinstance(device, torch.device):
        return torch.device("cpu") if device.type == "cuda" else device
    if isinstance(device, str):
        return "cpu" if device.split(":")[0] == "cuda" else device
    # torch reads a bare integer as the index of a GPU; booleans are not devices
    return "cpu" if isinstance(device, int) and not isinstance(device, bool) else device


class _CudaToCpu(overrides.TorchFunctionMode):
    """Redirect calls of torch that ask for CUDA to the CPU, on this thread.

    One mechanism instead of a patch per postprocessor: `.cuda()` and `.to()` of tensors and
    modules and `device=` of every function of torch pass through here.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Optional[dict] = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.device:
            return _on_cpu(func(*args, **kwargs))
        if func is torch.Tensor.to and len(args) > 1:
            args = (args[0], _on_cpu(args[1]), *args[2:])
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _on_cpu(kwargs["device"])}
        return func(*args, **kwargs)


def _enter_mode(undo: ExitStack) -> None:
    mode = _CudaToCpu()
    mode.__enter__()
    undo.callback(_leave_mode, mode)


def _leave_mode(mode: _CudaToCpu) -> None:
    """Remove `mode` from torch's stack, even from below modes that were entered after it."""
    above = []
    while overrides._len_torch_function_stack() > 0:
        top = overrides._pop_mode()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        overrides._push_mode(other)


class _CpuFloatTensor:
    """Replaces `torch.cuda.FloatTensor`: makes CPU tensors, and no tensor is an instance of it."""

    def __new__(cls, *args: Any) -> Any:
        return torch.FloatTensor(*args)


def replace_attribute(owner: Any, name: str, value: Any, undo: ExitStack) -> None:
    """Set an attribute, and undo that with `undo` unless somebody has replaced it again by then."""
    original = getattr(owner, name)

    def put_back() -> None:
        if getattr(owner, name) is value:
            setattr(owner, name, original)

    setattr(owner, name, value)
    undo.callback(put_back)


def _patch_load(undo: ExitStack) -> None:
    original = torch.load

    @functools.wraps(original)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        location = "cpu" if map_location is None else _on_cpu(map_location)
        return original(f, location, *args, **kwargs)

    replace_attribute(torch, "load", load, undo)


# ---- data loader workers


def _workers_are_spawned() -> bool:
    method = multiprocessing.get_start_method(allow_none=True)
    # the first of the list is Python's default
    return (method or multiprocessing.get_all_start_methods()[0]) != "fork"


def _fork_workers(undo: ExitStack) -> None:
    method = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("fork", force=True)
    undo.callback(multiprocessing.set_start_method, method, force=True)


PATCHES: tuple[Patch, ...] = (
    Patch(
        "numpy-sctypes",
        "imgaug 0.4.0, which OpenOOD imports, reads np.sctypes; NumPy 2 dropped it",
        lambda: bool(_missing(["sctypes"])),
        partial(_add_to_numpy, {"sctypes": _SCTYPES}),
    ),
    Patch(
        "numpy-aliases",
        "OpenOOD uses np.float (ECE evaluator), np.int (CutMix) and np.product (PatchCore)",
        lambda: bool(_missing(_ALIASES)),
        partial(_add_to_numpy, _ALIASES),
    ),
    Patch(
        "fork-workers",
        "OpenOOD's scripts have no __main__ guard: workers that are not forked run them again",
        lambda: sys.platform == "linux" and _workers_are_spawned(),
        _fork_workers,
    ),
    Patch(
        "cuda-to-cpu",
        "OpenOOD calls .cuda() and allocates on 'cuda' even if there is no GPU",
        _no_gpu,
        _enter_mode,
    ),
    Patch(
        "cuda-float-tensor",
        "MDSEns and GMM use torch.cuda.FloatTensor, a type, which 'cuda-to-cpu' cannot redirect",
        _no_gpu,
        partial(replace_attribute, torch.cuda, "FloatTensor", _CpuFloatTensor),
    ),
    Patch(
        "load-on-cpu",
        "checkpoints and pickled postprocessors saved on a GPU are loaded to that GPU",
        _no_gpu,
        _patch_load,
    ),
)

#: The patches that are applied now, and what undoes each of them.
applied: dict[str, ExitStack] = {}
