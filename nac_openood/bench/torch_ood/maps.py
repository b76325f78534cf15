"""Feature maps: what modules inside a network say in a pass, and passes with other maps."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any, Callable, Sequence

import torch
from torch import Tensor, nn

from nac_openood.bench.methods import Absent
from nac_openood.core.layers import known_layers, recognise
from nac_openood.core.network import eager, logits_of


class _Enough(Exception):
    """The rest of the pass is not needed."""


def stages(method: str, net: nn.Module, *names: str) -> list[nn.Module]:
    """Stages of a network by their names in the architecture table.

    Raises:
        Absent: where the network has none that say maps `[batch, channels, height, width]`.
    """
    found = {layer.alias: layer for layer in known_layers(net)}
    if all(name in found and found[name].layout == "maps" for name in names):
        modules = dict(net.named_modules())
        return [modules[found[name].path] for name in names]
    row = recognise(net)
    what = "is not in the architecture table" if row is None else f"is a {row[0].name}"
    raise Absent(
        f"{method} needs feature maps [batch, channels, height, width] of {' and '.join(names)}, "
        f"as a ResNet has them, but {type(net).__name__} {what} without such maps. Leave {method} "
        "out for this network."
    )


def outputs(
    net: nn.Module, modules: Sequence[nn.Module], x: Tensor, *, copies: bool
) -> tuple[Tensor, list[Tensor]]:
    """Logits, and what `modules` said, a tensor a call in the order of the calls.

    Args:
        net: the network.
        modules: of it.
        x: a batch.
        copies: whether to copy; otherwise an operation in place can rewrite what was said.
    """
    said: list[Tensor] = []

    def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
        said.append(output.clone() if copies else output)

    return _hooked(net, modules, "register_forward_hook", hook, x), said


def logits_with(net: nn.Module, module: nn.Module, maps: Tensor, x: Tensor) -> Tensor:
    """Logits of a pass in which `module` says `maps`."""
    return _hooked(net, [module], "register_forward_hook", lambda *_: maps, x)


def input_of(net: nn.Module, module: nn.Module, x: Tensor) -> Tensor:
    """What `module` is given in a pass, which ends there."""
    seen: list[Tensor] = []

    def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0].clone())
        raise _Enough

    with suppress(_Enough):
        _hooked(net, [module], "register_forward_pre_hook", hook, x)
    return seen[0]


def _hooked(
    net: nn.Module,
    modules: Sequence[nn.Module],
    register: str,
    hook: Callable[..., Any],
    x: Tensor,
) -> Tensor:
    with ExitStack() as stack:
        stack.enter_context(eager(net))
        for module in modules:
            stack.callback(getattr(module, register)(hook).remove)
        return logits_of(net(x), x)


def spatial_mean(maps: Tensor) -> Tensor:
    """Maps `[batch, channels, ...]` as `[batch, channels]`."""
    return torch.flatten(maps, 2).mean(dim=2)
