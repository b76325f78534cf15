"""The changes that OpenOOD needs, each with how to undo it; see `nac_openood.plugin.compat`."""

from __future__ import annotations

import functools
import multiprocessing
import warnings
from contextlib import ExitStack
from typing import Any, Iterable, Mapping, Optional

import numpy as np
import torch
from torch import overrides


def replace_attribute(owner: Any, name: str, value: Any, undo: ExitStack) -> None:
    """Set an attribute, and undo that with `undo` unless somebody has replaced it again by then."""
    original = getattr(owner, name)

    def put_back() -> None:
        if getattr(owner, name) is value:
            setattr(owner, name, original)

    setattr(owner, name, value)
    undo.callback(put_back)


# ---- names that NumPy dropped

NUMPY_SCTYPES = {
    "int": [np.int8, np.int16, np.int32, np.int64],
    "uint": [np.uint8, np.uint16, np.uint32, np.uint64],
    "float": [np.float16, np.float32, np.float64, np.longdouble],
    "complex": [np.complex64, np.complex128, np.clongdouble],
    "others": [bool, object, bytes, str, np.void],
}
NUMPY_ALIASES = {"float": float, "int": int, "product": np.prod}


def missing_in_numpy(names: Iterable[str]) -> list[str]:
    """Those of `names` that NumPy lacks; NumPy 1.20 to 1.23 warn when asked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [name for name in names if not hasattr(np, name)]


def add_to_numpy(values: Mapping[str, Any], undo: ExitStack) -> None:
    """Give NumPy those of the names that it lacks."""
    for name in missing_in_numpy(values):
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


def redirect_cuda(undo: ExitStack) -> None:
    """Let torch use the CPU wherever it is asked for CUDA."""
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


class CpuFloatTensor:
    """Replaces `torch.cuda.FloatTensor`: makes CPU tensors, and no tensor is an instance of it."""

    def __new__(cls, *args: Any) -> Any:
        """A tensor on the CPU."""
        return torch.FloatTensor(*args)


def load_on_cpu(undo: ExitStack) -> None:
    """Let `torch.load` put on the CPU what was saved on a GPU."""
    original = torch.load

    @functools.wraps(original)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        location = "cpu" if map_location is None else _on_cpu(map_location)
        return original(f, location, *args, **kwargs)

    replace_attribute(torch, "load", load, undo)


# ---- data loader workers


def workers_are_spawned() -> bool:
    """Whether processes are started in another way than by forking this one."""
    method = multiprocessing.get_start_method(allow_none=True)
    # the first of the list is Python's default
    return (method or multiprocessing.get_all_start_methods()[0]) != "fork"


def fork_workers(undo: ExitStack) -> None:
    """Let processes be forked."""
    method = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("fork", force=True)
    undo.callback(multiprocessing.set_start_method, method, force=True)
