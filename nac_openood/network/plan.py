"""How to run a pass fast: in parts, in which memory layout, with BatchNorms folded.

On CPUs a large batch runs in parts small enough that the allocator reuses memory instead of asking
the system for it again and again. That is what choosing a smaller batch size would do.

With `fast` the numbers stay the same up to rounding, so it is an option, never the default:
BatchNorms are folded into convolutions, and on CPUs the pass runs channels-last, in which
convolutions need no reordering. In evaluation mode a BatchNorm is a multiplication and an addition
per channel, which the convolution before it can do on the way. That needs a convolution whose
output nothing but the BatchNorm reads, which is found by watching the network run. Only replicas
are folded.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import nullcontext
from functools import partial
from typing import Any, Collection, ContextManager, Iterable, Mapping, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from nac_openood.network.inputs import (
    Inputs,
    explained,
    mapped,
    prepare,
    rows,
    sample_count,
    tensors_in,
)
from nac_openood.network.replica import (
    ReplicaCache,
    has_hooks,
    kept_random_state,
    run_without_grad,
    torch_states,
    unwrap,
)

#: glibc maps larger blocks anew every time, with a page fault for every page.
_LARGEST_BLOCK = 32 * 2**20


class PassPlan:
    """How best to run a network, found by watching it run on one sample.

    Threads can share a plan. It notices when modules of the network are replaced.

    Args:
        net: the network.
        x: a batch of the kind that will be passed.
        fast: also use what changes the rounding.

    Attributes:
        replicas: replicas of the network, for passes by this plan.
    """

    def __init__(self, net: nn.Module, x: Any, *, fast: bool = False) -> None:
        net = unwrap(net)
        batch, x = x, prepare(net, x)
        self._fast = fast
        self.replicas = ReplicaCache()
        self._on_cpu = tensors_in(x)[0].device.type == "cpu"
        with kept_random_state(), explained(batch):
            before = torch_states()
            self._watched = _watch(net, rows(x, slice(1)))
            self._draws = not all(map(torch.equal, before, torch_states()))

    @property
    def pairs(self) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
        """The modules that a pass folds, unless hooks or readings prevent it."""
        return [(f.conv, f.norm) for f in self._watched.foldable] if self._fast else []

    def parts(self, x: Inputs) -> list[Any]:
        """The batch in the pieces and the memory layout that run fastest."""
        if not self._on_cpu:
            return [x]
        largest = self._watched.largest
        n = sample_count(x)
        most = max(1, _LARGEST_BLOCK // largest) if largest else n
        # even pieces: a small last one would cost a whole pass of overhead
        size = math.ceil(n / math.ceil(n / most))
        pieces = [x] if size >= n else [rows(x, slice(i, i + size)) for i in range(0, n, size)]
        return [mapped(piece, _channels_last) for piece in pieces] if self._fast else pieces

    def around_pass(self) -> ContextManager[None]:
        """A context that keeps the random state if the network draws even in evaluation mode."""
        return kept_random_state() if self._draws else nullcontext()

    def adapt(
        self,
        net: nn.Module,
        x: Inputs,
        read: Collection[nn.Module],
        replicas: Mapping[nn.Module, nn.Module],
    ) -> None:
        """Fold replicas, if the plan is fast.

        Args:
            net: the network, without wrappers.
            x: a batch for it, to watch it again if its modules have changed.
            read: the modules whose outputs are read, which must not change.
            replicas: by their originals.
        """
        if not self._fast:
            return
        structure = _structure(replicas)
        watched = self._watched
        if watched.structure != structure:
            watched = self._watched = _watch(net, rows(x, slice(1)))
        if watched.structure != structure:  # it is being changed right now
            return
        for conv, norm, producers, consumers in watched.foldable:
            hooked = any(map(has_hooks, producers | consumers))
            if producers.isdisjoint(read) and not hooked and norm.running_mean is not None:
                folded = partial(_convolve_and_normalize, replicas[conv], replicas[norm])
                vars(replicas[conv])["forward"] = folded
                vars(replicas[norm])["forward"] = lambda input: input


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


class _Foldable(NamedTuple):
    """A convolution whose output goes into a BatchNorm and nowhere else.

    `producers` are all modules that return that output, `consumers` all that take it.
    """

    conv: nn.Conv2d
    norm: nn.BatchNorm2d
    producers: frozenset[nn.Module]
    consumers: frozenset[nn.Module]


class _Watched(NamedTuple):
    """The structure of the network, what can be folded, and the most bytes of a layer's output."""

    structure: list[tuple[nn.Module, Any]]
    foldable: list[_Foldable]
    largest: int


def _structure(modules: Iterable[nn.Module]) -> list[tuple[nn.Module, Any]]:
    """What the result of `_watch` depends on: modules, and `forward`s set on them."""
    return [(module, vars(module).get("forward")) for module in modules]


def _convolve_and_normalize(conv: Any, norm: Any, input: Tensor) -> Tensor:
    scale = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight.detach()
    shift = -norm.running_mean if conv.bias is None else conv.bias.detach() - norm.running_mean
    bias = shift * scale if norm.bias is None else norm.bias.detach() + shift * scale
    weight = conv.weight.detach() * scale[:, None, None, None]
    return conv._conv_forward(input, weight, bias)


class _Output(Tensor):
    """The output of a convolution, which counts the calls that use it."""

    uses: int
    conv: nn.Conv2d
    producers: set[nn.Module]
    consumers: set[nn.Module]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
        if isinstance(result, (Tensor, tuple, list, np.ndarray)):
            used = [value for value in tree_leaves((args, kwargs)) if isinstance(value, cls)]
            for output in {id(value): value for value in used}.values():
                output.uses += 1
        return result


def _watch(net: nn.Module, x: Inputs) -> _Watched:
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
                tensor.consumers.add(module)
        if isinstance(output, _Output):
            output.producers.add(module)
        elif type(output) is Tensor and type(module) is nn.Conv2d and "forward" not in vars(module):
            marked = output.as_subclass(_Output)
            marked.uses, marked.conv = 0, module
            marked.producers, marked.consumers = {module}, set()
            outputs.append(marked)
            return marked
        return None

    structure = _structure(net.modules())
    run_without_grad(net, x, on_output=[(module, observe) for module in net.modules()])
    foldable = [
        _Foldable(output.conv, norm, frozenset(output.producers), frozenset(output.consumers))
        for output in outputs
        for norm in output.consumers
        if type(norm) is nn.BatchNorm2d and "forward" not in vars(norm)
        if norm.running_mean is not None
        if runs[output.conv] == runs[norm] == output.uses == 1
    ]
    sizes = [output.numel() * output.element_size() for output in outputs]
    return _Watched(structure, foldable, max(sizes, default=0))
