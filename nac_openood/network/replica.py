"""A private replica of a network: its own modules, the same weights.

A pass needs hooks, evaluation mode and sometimes folded convolutions. On the caller's own modules
all of that would be seen by other threads, and left behind by an interrupt at the wrong moment. So
every pass makes a replica of the module tree, as `nn.DataParallel` does: new module objects with
copies of the old ones' attributes and hooks. Parameters and buffers are shared, not copied. Making
one takes a millisecond or two for a ResNet-50; as it is made for each pass, it is never stale.

What `forward` assigns to `self` stays in the replica and is dropped with it. A hook is given the
replica of its module, which is what `weight_norm` and the like need; a hook of an object that
keeps modules of the network, and may look its module up among them, is given the original.
"""

from __future__ import annotations

import copy
from functools import partial
from itertools import chain
from typing import Any, Callable

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from nac_openood.errors import ProbeError
from nac_openood.network.rebind import LEAVES, Rebind

#: Attributes of every module that hold its parameters, buffers, children and hooks of a pass.
_REGISTRIES = frozenset(
    name
    for name, value in vars(nn.Module()).items()
    if isinstance(value, dict) and "state_dict" not in name
)
#: The hooks that somebody may have put on a module, by attribute.
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def unwrap(net: nn.Module) -> nn.Module:
    """The network inside DataParallel, DDP and torch.compile, which compute what it computes.

    Raises:
        ProbeError: this is no network.
    """
    if not isinstance(net, nn.Module):
        raise ProbeError(f"expected a network, a torch.nn.Module, got {type(net).__name__}.")
    while True:
        is_parallel = isinstance(net, (nn.DataParallel, nn.parallel.DistributedDataParallel))
        inner = getattr(net, "module" if is_parallel else "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return net
        net = inner


def replicate(net: nn.Module, *, frozen: bool = False) -> dict[nn.Module, nn.Module]:
    """Every module of `net` with its replica, `net` itself first.

    Replicas are in evaluation mode and run eagerly where the original is compiled.

    Args:
        net: any network.
        frozen: whether the replicas' parameters need no gradients; they share the memory of the
            originals all the same.
    """
    replicas = {module: _blank(module) for module in net.modules()}
    replaced: dict[int, Any] = {id(module): replica for module, replica in replicas.items()}
    if frozen:
        for parameter in net.parameters():
            replaced[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
    rebind = Rebind(replaced)
    for module, replica in replicas.items():
        if not isinstance(module, torch.jit.ScriptModule):
            _fill(replica, module, rebind)
    return replicas


def private_copy(net: nn.Module) -> nn.Module:
    """A frozen replica of `net`, without wrappers, for code that is not ours to run on."""
    net = unwrap(net)
    return replicate(net, frozen=True)[net]


def _blank(module: nn.Module) -> nn.Module:
    """A replica without attributes yet."""
    if isinstance(module, torch.jit.ScriptModule):
        # its modes are not Python's to set, and inside it no Python hook runs
        return copy.deepcopy(module).eval() if module.training else copy.copy(module)
    kind = type(module)
    if hasattr(kind, "__del__"):  # what is to happen when the original is deleted, and only then
        kind = type(kind.__name__, (kind,), {"__del__": lambda self: None, "__module__": __name__})
    replica: nn.Module = object.__new__(kind)
    return replica


def _fill(replica: nn.Module, module: nn.Module, rebind: Rebind) -> None:
    state = vars(module).copy()
    if any(map(is_lazy, chain(state["_parameters"].values(), state["_buffers"].values()))):
        raise ProbeError(
            f"{type(module).__name__} has parameters that are not initialized yet. Run the network "
            "once on a batch, which initializes them."
        )
    for name, value in state.items():
        if name in _REGISTRIES:
            state[name] = value = value.copy()
            if name in HOOKS:
                for key, hook in value.items():
                    value[key] = _rebound(hook, module, rebind)
            elif name in ("_modules", "_parameters"):
                for key, part in value.items():
                    value[key] = rebind(part)
        elif type(value) not in LEAVES:
            state[name] = rebind(value)
    state["training"] = False
    if isinstance(module, nn.TransformerEncoder):
        state["use_nested_tensor"] = False  # as which no module between its layers can be read
    if isinstance(state["_modules"].get("_orig_mod"), nn.Module):  # made by torch.compile(module)
        state["forward"] = state["_modules"]["_orig_mod"]
    if "_compiled_call_impl" in state:  # made by module.compile()
        state["_compiled_call_impl"] = None
    vars(replica).update(state)


def _rebound(hook: Callable[..., Any], module: nn.Module, rebind: Rebind) -> Callable[..., Any]:
    """A hook for the replica of `module`."""
    new: Callable[..., Any] = rebind(hook)
    keeper = getattr(hook, "__self__", hook)
    if new is hook and rebind.leads(getattr(keeper, "__dict__", None)):
        return partial(_call_with, module, hook)
    return new


def _call_with(module: nn.Module, hook: Callable[..., Any], _: nn.Module, *rest: Any) -> Any:
    return hook(module, *rest)
