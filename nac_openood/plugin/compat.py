"""OpenOOD on NumPy 2, on new Pythons and without a GPU: every patch named, each one undoable.

Nothing here happens by itself. `apply_compat()` applies the patches of `PATCHES` that this machine
needs, `remove_compat()` takes them back, and `compat()` does both around a block. No file of
OpenOOD is touched: the patches give back names that NumPy dropped, and send to the CPU what
OpenOOD sends to a GPU that is not there.
"""

from __future__ import annotations

import functools
import multiprocessing
import sys
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional

import numpy as np
import torch
from torch import overrides

from nac_openood.errors import NACError


@dataclass(frozen=True)
class Patch:
    """One thing that is changed, why, when, and how it is taken back.

    Attributes:
        name: what `apply_compat` and `remove_compat` call it.
        reason: what fails without it.
        needed: whether this machine needs it; asked at the time of applying.
        apply: makes the change and returns what `undo` needs to take it back.
        undo: takes the change back, given what `apply` returned.
    """

    name: str
    reason: str
    needed: Callable[[], bool]
    apply: Callable[[], Any]
    undo: Callable[[Any], None]


def apply_compat(on_cpu: bool = False) -> tuple[str, ...]:
    """Apply the patches that are needed and not in place yet, all of them or none.

    Args:
        on_cpu: send OpenOOD to the CPU also where there is a GPU.

    Returns:
        The names of the patches applied by this call; give them to `remove_compat` to take back
        exactly these. A second call applies nothing and returns `()`.
    """
    new: list[str] = []
    try:
        for patch in PATCHES:
            wanted = patch.needed() or (on_cpu and patch.name in _FOR_THE_CPU)
            if patch.name not in _applied and wanted:
                _applied[patch.name] = patch.apply()
                new.append(patch.name)
    except BaseException:
        remove_compat(new)
        raise
    return tuple(new)


def remove_compat(names: Optional[Iterable[str]] = None) -> None:
    """Take back the patches `names` (all by default), the latest first."""
    known = [patch.name for patch in PATCHES]
    wanted = set(known if names is None else names)
    if wanted - set(known):
        raise NACError(
            f"Expected names of compat patches, {', '.join(known)}, but got "
            f"{', '.join(sorted(wanted - set(known)))}. Pass what apply_compat() returned."
        )
    for patch in reversed(PATCHES):
        if patch.name in wanted and patch.name in _applied:
            patch.undo(_applied.pop(patch.name))


@contextmanager
def compat(on_cpu: bool = False) -> Iterator[tuple[str, ...]]:
    """Apply what is needed for a block; patches that were in place before stay in place."""
    names = apply_compat(on_cpu)
    try:
        yield names
    finally:
        remove_compat(names)


def applied_patches() -> tuple[str, ...]:
    """The names of the patches in place now."""
    return tuple(patch.name for patch in PATCHES if patch.name in _applied)


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
    """Those of `names` that NumPy lacks; old NumPys warn when merely asked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [name for name in names if not hasattr(np, name)]


def _add_to_numpy(values: Mapping[str, Any]) -> list[str]:
    names = _missing(values)
    for name in names:
        setattr(np, name, values[name])
    return names


def _drop_from_numpy(names: list[str]) -> None:
    for name in names:
        delattr(np, name)


# ---- a GPU that is not there


def _on_cpu(device: Any) -> Any:
    """A CUDA device, however it is spelled, becomes the CPU; everything else stays what it is."""
    if isinstance(device, torch.device):
        return torch.device("cpu") if device.type == "cuda" else device
    if isinstance(device, str):
        return "cpu" if device.split(":")[0] == "cuda" else device
    # torch reads a bare integer as the index of a GPU (True and False are no devices).
    return "cpu" if isinstance(device, int) and not isinstance(device, bool) else device


class _CudaToCpu(overrides.TorchFunctionMode):
    """Sees each call of torch on this thread and sends to the CPU what asks for CUDA.

    One mechanism instead of a patch a postprocessor: `.cuda()` of tensors and modules, `.to()`
    and `device=` of every function of torch pass through here. The results are the CPU's own.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Optional[dict] = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.device:
            device = func(*args, **kwargs)
            return func("cpu") if device.type == "cuda" else device
        if func is torch.Tensor.to and len(args) > 1:
            args = (args[0], _on_cpu(args[1]), *args[2:])
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _on_cpu(kwargs["device"])}
        return func(*args, **kwargs)


def _enter_mode() -> _CudaToCpu:
    mode = _CudaToCpu()
    mode.__enter__()
    return mode


def _leave_mode(mode: _CudaToCpu) -> None:
    """Take `mode` out of torch's stack, also from below modes that were entered after it."""
    above = []
    while overrides._len_torch_function_stack() > 0:
        top = overrides._pop_mode()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        overrides._push_mode(other)


class _CpuFloatTensor:
    """Stands for `torch.cuda.FloatTensor`: makes CPU tensors; no tensor is an instance of it."""

    def __new__(cls, *args: Any) -> Any:
        return torch.FloatTensor(*args)


def _replace(owner: Any, name: str, value: Any) -> tuple[Any, str, Any, Any]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    return owner, name, value, original


def _put_back(change: tuple[Any, str, Any, Any]) -> None:
    owner, name, value, original = change
    # Somebody who replaced it after us keeps their replacement.
    if getattr(owner, name) is value:
        setattr(owner, name, original)


def _patch_load() -> tuple[Any, str, Any, Any]:
    original = torch.load

    @functools.wraps(original)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        location = "cpu" if map_location is None else _on_cpu(map_location)
        return original(f, location, *args, **kwargs)

    return _replace(torch, "load", load)


# ---- data loader workers


def _workers_are_spawned() -> bool:
    method = multiprocessing.get_start_method(allow_none=True)
    # The first of the list is what Python chooses when nobody did.
    return (method or multiprocessing.get_all_start_methods()[0]) != "fork"


def _fork_workers() -> Optional[str]:
    method = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("fork", force=True)
    return method


def _start_method(method: Optional[str]) -> None:
    multiprocessing.set_start_method(method, force=True)


PATCHES: tuple[Patch, ...] = (
    Patch(
        "numpy-sctypes",
        "imgaug 0.4.0, which OpenOOD imports, reads np.sctypes; NumPy 2 dropped it",
        lambda: bool(_missing(["sctypes"])),
        lambda: _add_to_numpy({"sctypes": _SCTYPES}),
        _drop_from_numpy,
    ),
    Patch(
        "numpy-aliases",
        "OpenOOD uses np.float (ECE evaluator), np.int (CutMix) and np.product (PatchCore)",
        lambda: bool(_missing(_ALIASES)),
        lambda: _add_to_numpy(_ALIASES),
        _drop_from_numpy,
    ),
    Patch(
        "fork-workers",
        "OpenOOD's scripts have no __main__ guard, so workers that are not forked run them again",
        lambda: sys.platform == "linux" and _workers_are_spawned(),
        _fork_workers,
        _start_method,
    ),
    Patch(
        "cuda-to-cpu",
        "OpenOOD calls .cuda() and allocates on 'cuda' whether or not there is a GPU",
        _no_gpu,
        _enter_mode,
        _leave_mode,
    ),
    Patch(
        "cuda-float-tensor",
        "MDSEns and GMM build torch.cuda.FloatTensor, a type and so beyond 'cuda-to-cpu'",
        _no_gpu,
        lambda: _replace(torch.cuda, "FloatTensor", _CpuFloatTensor),
        _put_back,
    ),
    Patch(
        "load-on-cpu",
        "checkpoints and pickled postprocessors saved on a GPU name it as the place to load to",
        _no_gpu,
        _patch_load,
        _put_back,
    ),
)

_FOR_THE_CPU = frozenset({"cuda-to-cpu", "cuda-float-tensor", "load-on-cpu"})
_applied: dict[str, Any] = {}
