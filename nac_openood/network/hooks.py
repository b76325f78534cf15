"""Watch a network run: the one place where hooks are put on replicas of modules.

`run` makes a replica of the network (see `replica.py`), hooks it and runs it once. The caller's
network has no hook, mode or attribute changed at any moment, so there is nothing to put back
afterwards, and other threads can use the same network meanwhile.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Iterable, Mapping, Optional

import torch
from torch import nn
from torch.nn.modules import module as everywhere

from nac_openood.network.inputs import Inputs, call, mapped
from nac_openood.network.replica import HOOKS, replicate, unwrap

#: Called as `observe(module, inputs)` before a module runs.
InputObserver = Callable[[nn.Module, "tuple[Any, ...]"], None]
#: Called as `observe(module, inputs, output)`; what it returns, unless None, replaces the output.
OutputObserver = Callable[[nn.Module, "tuple[Any, ...]", Any], Any]
#: Changes the replicas, given by their originals, before they run.
Adapt = Callable[[Mapping[nn.Module, nn.Module]], None]


class EndOfPass(BaseException):
    """Raised by an observer that has seen enough: the rest of the network is not run."""


def run(net: nn.Module, x: Inputs, **observers: Any) -> Any:
    """What `net` returns for a batch, in evaluation mode, with observers on some of its modules.

    A graph is recorded if gradients are enabled. The network gets a copy of `x`, which it may
    overwrite.

    Args:
        net: the network; it is run without its DataParallel, DDP or torch.compile wrapper.
        x: a batch as `prepare` gives it.
        observers: `on_input`, `on_output` and `adapt`, as in `hooked`.

    Returns:
        The network's output; None if an observer raised `EndOfPass`.
    """
    replica = hooked(net, **observers)
    try:
        return call(replica, mapped(x, torch.clone))
    except EndOfPass:
        return None


def hooked(
    net: nn.Module,
    *,
    on_input: Iterable[tuple[nn.Module, InputObserver]] = (),
    on_output: Iterable[tuple[nn.Module, OutputObserver]] = (),
    adapt: Optional[Adapt] = None,
    frozen: bool = False,
) -> nn.Module:
    """A replica of `net`, in evaluation mode and without wrappers, with observers on its modules.

    Observers come after the hooks that modules have already, and are given modules of `net`, never
    replicas.

    Args:
        net: the network.
        on_input: pairs of a module of `net` and what to call with its inputs.
        on_output: pairs of a module of `net` and what to call with its output.
        adapt: is called with the replicas before they are hooked.
        frozen: as in `nac_openood.network.replica.replicate`.
    """
    net = unwrap(net)
    replicas = replicate(net, frozen=frozen)
    if adapt is not None:
        adapt(replicas)
    # not register_forward_hook: the keys it hands out are not unique when threads register at once
    for module, observe in on_input:
        replicas[module]._forward_pre_hooks[object()] = partial(_observe, observe, module)  # type: ignore[index]
    for module, observe_output in on_output:
        replicas[module]._forward_hooks[object()] = partial(_observe, observe_output, module)  # type: ignore[index]
    return replicas[net]


def run_without_grad(net: nn.Module, x: Inputs, **observers: Any) -> Any:
    """Like `run`, without a graph, also where the caller is in inference mode."""
    # in C, unlike torch.inference_mode: no interrupt can come between half of it and the rest
    with torch._C._InferenceMode(False):
        torch._C._set_grad_enabled(False)  # leaving the block restores this, too
        return run(net, x, **observers)


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody hooked a module, or all modules there are."""
    return any(getattr(module, name) or getattr(everywhere, f"_global{name}") for name in HOOKS)


def _observe(
    observe: Callable[..., Any], module: nn.Module, _: nn.Module, inputs: Any, *output: Any
) -> Any:
    return observe(module, inputs, *output)
