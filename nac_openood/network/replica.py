"""Run a network with hooks, without changing it: passes run on a private replica.

A pass needs hooks, evaluation mode and sometimes folded convolutions. On the caller's own modules
other threads would see them, and an interrupt could leave them behind. So a pass runs on a replica
of the module tree, as in `nn.DataParallel`: new module objects that share the parameters and
buffers of the old ones and have copies of their other attributes and hooks.

What `forward` assigns to `self` stays in the replica and is dropped with it. A hook is called with
the replica of its module, as `weight_norm` and the like need. Hooks of objects that keep references
to modules of the network are called with the original, which these objects may look up.
"""

from __future__ import annotations

import copy
import random
import threading
from collections import OrderedDict
from contextlib import contextmanager, suppress
from functools import partial
from operator import is_not
from types import CellType, FunctionType, MethodType
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy

from nac_openood.errors import ProbeError
from nac_openood.network.inputs import Inputs, call, mapped

#: Modules of a network, and what to call when each of them runs.
Observers = Iterable["tuple[nn.Module, Callable[..., Any]]"]
#: Changes the replicas, given by their originals, before they run.
Adapt = Callable[[Mapping[nn.Module, nn.Module]], None]

#: Attributes of every module that hold its parameters, buffers, children and hooks of a pass.
_REGISTRIES = {name for name, value in vars(nn.Module()).items() if isinstance(value, dict)}
#: Attributes that hold the hooks that somebody may have put on a module.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
#: Types of values that refer to no module; most attributes of a module have one of them.
_SIMPLE = {type(None), bool, int, float, str, bytes, Tensor}
#: The source file of the functions that decorators such as @torch.inference_mode() return.
_DECORATORS = torch.no_grad()(lambda: None).__code__.co_filename
#: Longer containers hold data, not modules; they are not searched.
_LONGEST = 1000


def unwrap(net: nn.Module) -> nn.Module:
    """The network inside the wrappers of DataParallel, DDP and torch.compile.

    Raises:
        ProbeError: `net` is not a network.
    """
    if not isinstance(net, nn.Module):
        raise ProbeError(f"expected a network, a torch.nn.Module, got {type(net).__name__}.")
    while True:
        is_parallel = isinstance(net, (nn.DataParallel, nn.parallel.DistributedDataParallel))
        inner = getattr(net, "module" if is_parallel else "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return net
        net = inner


# -- running -----------------------------------------------------------------------------------


class ReplicaCache:
    """Replicas of a network that are reused until it changes; threads can share it.

    Every pass has a replica to itself. One on which `forward` has left something is not used
    again, and neither is one after an error.

    Attributes:
        last: the `identities` of the network in the last pass.
    """

    def __init__(self) -> None:
        self.last: list[int] = []
        self._free: list[Replica] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return ReplicaCache, ()  # copies begin without replicas

    def take(self, net: nn.Module, read: Iterable[nn.Module], adapt: Optional[Adapt]) -> Replica:
        """A replica of `net`, adapted to the modules that are read; made if none is free."""
        self.last = identities(net.modules())
        state = [*map(id, read), *self.last]
        with suppress(IndexError):  # raised when no replica is left
            while True:
                replica = self._free.pop()
                if replica.original == state:
                    return replica
        replica = Replica(net)
        if adapt is not None:
            adapt(replica.modules)
        replica.original, replica.pristine = state, identities(replica.modules.values())
        return replica

    def give_back(self, replica: Replica) -> None:
        """Keep a replica for the next pass, if the last one left it unchanged."""
        if replica.reusable and replica.pristine == identities(replica.modules.values()):
            self._free.append(replica)


def identities(modules: Iterable[nn.Module]) -> list[int]:
    """The identities of everything that modules consist of.

    A replica keeps the attributes that it shares alive, so no new object gets the same identity.
    """
    found = [id(h) for name in _HOOKS for h in getattr(torch_module, f"_global{name}").values()]
    for module in modules:
        found.append(id(type(module)))
        for value in vars(module).values():
            found.append(id(value))
            if isinstance(value, dict):
                found.extend(map(id, value.values()))
    return found


def run(
    net: nn.Module,
    x: Inputs,
    *,
    on_input: Observers = (),
    on_output: Observers = (),
    adapt: Optional[Adapt] = None,
    cache: Optional[ReplicaCache] = None,
) -> Any:
    """Run `net` on a batch in evaluation mode, with observers on some of its modules.

    Observers come after the hooks that modules have already, and are called with modules of `net`,
    never with replicas. A graph is recorded if gradients are enabled. The network gets a copy of
    `x`, which it may overwrite.

    Args:
        net: the network; it is run without its DataParallel, DDP or torch.compile wrapper.
        x: a batch as `prepare` returns it.
        on_input: pairs of a module of `net` and what to call before it runs, as
            `observe(module, inputs)`.
        on_output: pairs of a module of `net` and what to call after it, as
            `observe(module, inputs, output)`. What it returns, unless None, replaces the output.
        adapt: called with new replicas.
        cache: keeps replicas between passes with the same `adapt`.

    Returns:
        The network's output.
    """
    net, on_output = unwrap(net), list(on_output)
    cache = cache or ReplicaCache()
    replica = cache.take(net, [module for module, _ in on_output], adapt)
    added = [
        *add_hooks(replica.modules, "_forward_pre_hooks", on_input),
        *add_hooks(replica.modules, "_forward_hooks", on_output),
    ]
    output = call(replica.modules[net], mapped(x, torch.clone))
    for hooks, key in added:
        del hooks[key]
    cache.give_back(replica)
    return output


def run_without_grad(net: nn.Module, x: Inputs, **observers: Any) -> Any:
    """Like `run`, without a graph, also where the caller is in inference mode."""
    # in C, unlike torch.inference_mode, so that an interrupt cannot leave it half done
    with torch._C._InferenceMode(False):
        torch._C._set_grad_enabled(False)  # leaving the block restores this, too
        return run(net, x, **observers)


def add_hooks(
    replicas: Mapping[nn.Module, nn.Module], name: str, observers: Observers
) -> list[tuple[dict[Any, Any], object]]:
    """Put the observers of `run` on replicas.

    Args:
        replicas: by their originals.
        name: `_forward_pre_hooks` or `_forward_hooks`.
        observers: pairs of an original and what to call.

    Returns:
        Where the hooks are, as pairs of a dict and a key.
    """
    added: list[tuple[dict[Any, Any], object]] = []
    for module, observe in observers:
        hooks, key = getattr(replicas[module], name), object()
        # not register_forward_hook, whose keys are not unique when threads register at once
        hooks[key] = partial(_call_with, module, observe)
        added.append((hooks, key))
    return added


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks, or there are global hooks."""
    return any(getattr(module, name) or getattr(torch_module, f"_global{name}") for name in _HOOKS)


# -- replicas ----------------------------------------------------------------------------------


class Replica:
    """New module objects that compute what `net` computes, with its weights.

    They are in evaluation mode and run eagerly where the original is compiled.

    Args:
        net: any network.
        frozen: whether parameters need no gradients; they share the originals' memory anyway.

    Attributes:
        modules: the replicas by their originals, that of `net` first.
        reusable: whether `identities` of `net` shows if they are still replicas of it.
    """

    original: list[int]
    pristine: list[int]

    def __init__(self, net: nn.Module, *, frozen: bool = False) -> None:
        self.modules = {module: _blank(module) for module in net.modules()}
        new: dict[int, Any] = {id(module): replica for module, replica in self.modules.items()}
        if frozen:
            for parameter in net.parameters():
                new[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
        self.reusable = True
        for module, replica in self.modules.items():
            scripted = isinstance(module, torch.jit.ScriptModule)
            self.reusable &= not scripted and _fill(replica, module, new)


def private_copy(net: nn.Module) -> nn.Module:
    """A frozen replica of `net`, without wrappers, for third-party code to run."""
    net = unwrap(net)
    return Replica(net, frozen=True).modules[net]


def _blank(module: nn.Module) -> nn.Module:
    """A replica without attributes yet."""
    if isinstance(module, torch.jit.ScriptModule):
        # it has no mode that can be set from here, and no Python hook runs inside it
        return copy.deepcopy(module).eval() if module.training else copy.copy(module)
    replica: nn.Module = object.__new__(type(module))
    return replica


def _fill(replica: nn.Module, module: nn.Module, new: dict[int, Any]) -> bool:
    """Give a replica its attributes; false if some had to be copied to refer to replicas."""
    state = vars(module).copy()
    # each replica would draw its own weights
    check_initialized(module, *state["_parameters"].values(), *state["_buffers"].values())
    shared = True
    for name, value in state.items():
        if name in ("_modules", "_parameters"):
            state[name] = {key: new.get(id(part), part) for key, part in value.items()}
        elif name in _HOOKS:
            state[name] = OrderedDict((k, _hook(f, module, new)) for k, f in value.items())
            shared &= not any(map(is_not, state[name].values(), value.values()))
        elif name in _REGISTRIES:
            state[name] = value.copy()
        else:
            state[name] = _rebound(value, new)
            shared &= state[name] is value
    state["training"] = False
    forward: Any = type(module).forward
    code = getattr(forward, "__code__", None)
    if code is not None and code.co_filename == _DECORATORS and "forward" not in state:
        # without @torch.inference_mode() and @torch.no_grad(), which turn off gradients
        state["forward"] = MethodType(forward.__wrapped__, new[id(module)])
    if isinstance(module, nn.TransformerEncoder):
        state["use_nested_tensor"] = False  # such tensors cannot be read
    if isinstance(state["_modules"].get("_orig_mod"), nn.Module):  # made by torch.compile(module)
        state["forward"] = state["_modules"]["_orig_mod"]
    if "_compiled_call_impl" in state:  # made by module.compile()
        state["_compiled_call_impl"] = None
    vars(replica).update(state)
    return shared


def check_initialized(module: nn.Module, *tensors: Optional[Tensor]) -> None:
    """Raise if one of the tensors belongs to a lazy module that has not run yet."""
    if any(tensor is not None and is_lazy(tensor) for tensor in tensors):
        raise ProbeError(
            f"{type(module).__name__} has parameters that are not initialized yet. Run the network "
            "once on a batch, which initializes them."
        )


def _hook(hook: Callable[..., Any], module: nn.Module, new: dict[int, Any]) -> Callable[..., Any]:
    """A hook for the replica of `module`."""
    rebound: Callable[..., Any] = _rebound(hook, new)
    attributes = getattr(getattr(hook, "__self__", hook), "__dict__", None)
    if rebound is hook and _rebound(attributes, new) is not attributes:
        return partial(_call_with, module, hook)
    return rebound


def _call_with(module: nn.Module, hook: Callable[..., Any], _: nn.Module, *rest: Any) -> Any:
    return hook(module, *rest)


def _rebound(value: Any, new: dict[int, Any]) -> Any:
    """`value`, or a copy of it that refers to replicas in place of the network's modules.

    A module can reach others by more than its registered children: a list of blocks, a bound
    method, a `forward` set on the instance, a hook that closes over its parent. So containers,
    bound methods, partials and closures are followed. Other objects are shared.

    Args:
        value: an attribute or hook of a module.
        new: what replaces what, by the `id` of the original; copies are added to it.
    """
    kind = type(value)
    if kind in _SIMPLE:
        return value
    if id(value) in new:
        return new[id(value)]
    new[id(value)] = value  # in case it contains itself
    make: Callable[[list[Any]], Any] = kind
    if kind in (list, tuple, set, frozenset) and len(value) <= _LONGEST:
        parts = list(value)
    elif kind in (dict, OrderedDict) and len(value) <= _LONGEST:
        parts, make = [*value, *value.values()], lambda p: kind(zip(p, p[len(value) :]))
    elif kind is MethodType:
        parts, make = [value.__func__, value.__self__], lambda p: MethodType(*p)
    elif kind is partial:
        parts, make = [value.func, value.args, value.keywords], lambda p: kind(p[0], *p[1], **p[2])
    elif kind is FunctionType and hasattr(value, "_torchdynamo_orig_callable"):
        # eagerly: compiled code skips hooks
        parts, make = [value, value._torchdynamo_orig_callable], lambda p: p[1]
    elif kind is FunctionType:
        parts, make = [c.cell_contents for c in value.__closure__ or ()], partial(_function, value)
    else:
        return value
    copies = [_rebound(part, new) for part in parts]
    if any(map(is_not, copies, parts)):
        new[id(value)] = make(copies)
    return new[id(value)]


def _function(old: FunctionType, contents: list[Any]) -> FunctionType:
    """A function with other variables in its closure."""
    # a cell without a module is shared: what the function writes into it stays visible
    cells = [
        cell if cell.cell_contents is content else CellType(content)
        for cell, content in zip(old.__closure__ or (), contents)
    ]
    new = FunctionType(old.__code__, old.__globals__, old.__name__, old.__defaults__, tuple(cells))
    new.__kwdefaults__ = old.__kwdefaults__
    vars(new).update(vars(old))
    return new


# -- random numbers -------------------------------------------------------------------------


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
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)
        yield
    finally:
        here = threading.current_thread()
        others = any(t is not here and not t.daemon for t in threading.enumerate())
        if seed is not None or not others:
            torch.set_rng_state(saved[0])
            if len(saved) > 1:
                torch.cuda.set_rng_state_all(saved[1:])
            np.random.set_state(numpy_state)
            random.setstate(python_state)


def torch_states() -> list[Tensor]:
    """The states of torch's generators, the CPU's first."""
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *on_gpu]
