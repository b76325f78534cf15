"""How to run a pass: in which parts, in which memory layout, with what folded into what.

On CPUs a large batch runs in parts small enough that the allocator reuses memory instead of asking
the system for it again and again. That is what choosing a smaller batch size would do.

With `fast` the numbers stay the same up to rounding, so it is an option, never the default. In eval
mode a BatchNorm is a multiplication and an addition a channel, which the convolution before it can
do on the way: both directions then skip two passes over memory for each BatchNorm. On CPUs the
pass also runs channels-last, in which convolutions need no reordering.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Collection, Iterator, Tuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nac_openood.core.network import prepare, unwrap
from nac_openood.core.undisturbed import undisturbed

Pair = Tuple[nn.Conv2d, nn.BatchNorm2d]

#: glibc maps larger blocks afresh every time, and every page of them faults.
_LARGEST_BLOCK = 32 * 2**20


class PassPlan:
    """What suits `net`, found once by watching it run on one sample of `x`.

    Args:
        net: the network.
        x: a batch of the kind that will be passed.
        fast: also do what rounds differently.
    """

    def __init__(self, net: nn.Module, x: Tensor, *, fast: bool = False) -> None:
        net = unwrap(net)
        x = prepare(net, x)
        self._on_cpu = x.device.type == "cpu"
        # an exact pass on a GPU runs as it comes: there is nothing to find out
        pairs, largest = _watch(net, x[:1]) if fast or self._on_cpu else ([], 0)
        self.pairs = pairs if fast else []
        self._channels_last = fast and x.ndim == 4
        self._part = max(1, _LARGEST_BLOCK // largest) if largest else None

    def parts(self, x: Tensor) -> list[Tensor]:
        """The batch in the pieces and the memory layout that run fastest."""
        if not self._on_cpu:
            return [x]
        # even pieces: a small last one would cost a whole pass of overhead
        pieces = x.chunk(math.ceil(x.shape[0] / self._part)) if self._part else [x]
        if not self._channels_last:
            return list(pieces)
        return [piece.contiguous(memory_format=torch.channels_last) for piece in pieces]

    @contextmanager
    def folded(self, probed: Collection[nn.Module]) -> Iterator[None]:
        """Fold for a while. A convolution that is probed or hooked is left as it is."""
        with ExitStack() as stack:
            for conv, norm in self.pairs:
                if conv in probed or conv._forward_hooks or norm._forward_pre_hooks:
                    continue
                with torch.inference_mode(False), torch.no_grad():
                    weight, bias = _fold(conv, norm)
                stack.enter_context(_forward(conv, partial(_convolve, conv, weight, bias)))
                stack.enter_context(_forward(norm, _identity))
            yield


def _fold(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Weight and bias of one convolution that does both. Made anew each pass: never stale."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight.detach()
    shift = -norm.running_mean if conv.bias is None else conv.bias.detach() - norm.running_mean
    bias = shift * scale if norm.bias is None else norm.bias.detach() + shift * scale
    return conv.weight.detach() * scale[:, None, None, None], bias


def _convolve(conv: nn.Conv2d, weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    return conv._conv_forward(x, weight, bias)


def _identity(x: Tensor) -> Tensor:
    return x


@contextmanager
def _forward(module: nn.Module, forward: Any) -> Iterator[None]:
    """Let `module` compute something else for a while."""
    vars(module)["forward"] = forward
    try:
        yield
    finally:
        del vars(module)["forward"]


class _Consumers(TorchFunctionMode):
    """Counts which tensors are taken by calls that make tensors, by identity."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: Counter[int] = Counter()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, (Tensor, tuple, list)):
            flat = [a for arg in args for a in (arg if isinstance(arg, (tuple, list)) else [arg])]
            self.taken.update({id(a) for a in flat if isinstance(a, Tensor)})
        return result


def _watch(net: nn.Module, x: Tensor) -> tuple[list[Pair], int]:
    """Convolutions whose output goes into one BatchNorm and nowhere else, and their most bytes."""
    made: dict[int, nn.Conv2d] = {}
    alive: list[Tensor] = []  # while a tensor lives, no other can have its identity
    consumers = _Consumers()
    runs: Counter[nn.Module] = Counter()
    pairs: list[tuple[nn.Conv2d, nn.BatchNorm2d, int]] = []

    def after(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        runs[module] += 1
        if isinstance(module, nn.Conv2d):
            made[id(output)] = module
            alive.append(output)
            del consumers.taken[id(output)]  # that was another tensor, dead by now
        elif isinstance(module, nn.BatchNorm2d) and id(inputs[0]) in made:
            pairs.append((made[id(inputs[0])], module, id(inputs[0])))

    with undisturbed(net), torch.inference_mode(False), torch.no_grad(), ExitStack() as stack:
        for module in net.modules():
            if type(module) in (nn.Conv2d, nn.BatchNorm2d) and "forward" not in vars(module):
                stack.callback(module.register_forward_hook(after).remove)
        with consumers:
            net(x)
    largest = max((t.numel() * t.element_size() for t in alive), default=0)
    foldable = [
        (conv, norm)
        for conv, norm, output in pairs
        if runs[conv] == runs[norm] == 1
        and consumers.taken[output] == 1
        and norm.running_mean is not None
        and norm.running_var is not None
    ]
    return foldable, largest
