"""Which BatchNorms can be folded into the convolution before them, and folding them.

In evaluation mode a BatchNorm is a multiplication and an addition per channel, which the
convolution before it can do on the way: both directions then skip two passes over memory for each
BatchNorm. That needs a convolution whose output nothing but the BatchNorm looks at, which is found
by watching the network run. Only replicas are folded, with the weights that they have as they run.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, Collection, Iterable, Mapping, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor, nn

from nac_openood.network.hooks import has_hooks, run_without_grad
from nac_openood.network.inputs import Inputs


class Foldable(NamedTuple):
    """A convolution whose output goes into a BatchNorm and nowhere else.

    `givers` are all modules that return that output, `takers` all that are given it.
    """

    conv: nn.Conv2d
    norm: nn.BatchNorm2d
    givers: frozenset[nn.Module]
    takers: frozenset[nn.Module]


class Watched(NamedTuple):
    """What was seen: the structure of the network, what can be folded, a layer's most bytes."""

    structure: list[tuple[nn.Module, Any]]
    foldable: list[Foldable]
    largest: int


def structure_of(modules: Iterable[nn.Module]) -> list[tuple[nn.Module, Any]]:
    """What must stay the same for `watch` to stay true: modules, and forwards set on them."""
    return [(module, vars(module).get("forward")) for module in modules]


def fold(
    foldable: Iterable[Foldable],
    read: Collection[nn.Module],
    replicas: Mapping[nn.Module, nn.Module],
) -> None:
    """Let replicas of convolutions do the work of their BatchNorms.

    Args:
        foldable: from `watch`.
        read: the modules whose outputs are read. They and modules with hooks see no other tensor.
        replicas: by their originals.
    """
    for conv, norm, givers, takers in foldable:
        hooked = any(map(has_hooks, givers | takers))
        if givers.isdisjoint(read) and not hooked and _has_statistics(norm):
            folded = partial(_convolve_and_normalize, replicas[conv], replicas[norm])
            vars(replicas[conv])["forward"] = folded
            vars(replicas[norm])["forward"] = _identity


def _has_statistics(norm: nn.BatchNorm2d) -> bool:
    return norm.running_mean is not None and norm.running_var is not None


def _convolve_and_normalize(conv: Any, norm: Any, input: Tensor) -> Tensor:
    scale = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight.detach()
    shift = -norm.running_mean if conv.bias is None else conv.bias.detach() - norm.running_mean
    bias = shift * scale if norm.bias is None else norm.bias.detach() + shift * scale
    weight = conv.weight.detach() * scale[:, None, None, None]
    return conv._conv_forward(input, weight, bias)


def _identity(input: Tensor) -> Tensor:
    return input


class _Output(Tensor):
    """The output of a convolution, which counts the calls that make something of it."""

    uses: int
    conv: nn.Conv2d
    givers: set[nn.Module]
    takers: set[nn.Module]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
        if isinstance(result, (Tensor, tuple, list, np.ndarray)):
            given = [*args, *kwargs.values()]
            flat = [a for arg in given for a in (arg if isinstance(arg, (tuple, list)) else [arg])]
            for output in {id(a): a for a in flat if isinstance(a, cls)}.values():
                output.uses += 1
        return result


def watch(net: nn.Module, x: Inputs) -> Watched:
    """Run `net` on a sample and find what can be folded.

    Args:
        net: the network, without wrappers.
        x: one sample, as a batch.
    """
    outputs: list[_Output] = []
    runs: Counter[nn.Module] = Counter()

    def observe(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Optional[Tensor]:
        runs[module] += 1
        for tensor in inputs:
            if isinstance(tensor, _Output):
                tensor.takers.add(module)
        if isinstance(output, _Output):
            output.givers.add(module)
        elif type(output) is Tensor and type(module) is nn.Conv2d and "forward" not in vars(module):
            marked = output.as_subclass(_Output)
            marked.uses, marked.conv, marked.givers, marked.takers = 0, module, {module}, set()
            outputs.append(marked)
            return marked
        return None

    structure = structure_of(net.modules())
    run_without_grad(net, x, on_output=[(module, observe) for module in net.modules()])
    foldable = [
        Foldable(output.conv, norm, frozenset(output.givers), frozenset(output.takers))
        for output in outputs
        for norm in output.takers
        if type(norm) is nn.BatchNorm2d and "forward" not in vars(norm) and _has_statistics(norm)
        if runs[output.conv] == runs[norm] == output.uses == 1
    ]
    sizes = [output.numel() * output.element_size() for output in outputs]
    return Watched(structure, foldable, max(sizes, default=0))
