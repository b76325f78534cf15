"""How to run a pass: in which parts, in which memory layout, with what folded into what.

On CPUs a large batch runs in parts small enough that the allocator reuses memory instead of asking
the system for it again and again. That is what choosing a smaller batch size would do.

With `fast` the numbers stay the same up to rounding, so it is an option, never the default:
BatchNorms are folded into convolutions (see `folding.py`), and on CPUs the pass runs channels-last,
in which convolutions need no reordering.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any, Collection, ContextManager, Mapping

import torch
from torch import Tensor, nn

from nac_openood.network.calling import explained, prepare
from nac_openood.network.folding import fold, structure_of, watch
from nac_openood.network.inputs import Inputs, mapped, rows, sample_count, tensors_in
from nac_openood.network.random_state import kept_random_state, torch_states
from nac_openood.network.replica import unwrap

#: glibc maps larger blocks afresh every time, and every page of them faults.
_LARGEST_BLOCK = 32 * 2**20


class PassPlan:
    """How best to run a network, found by watching it run on one sample.

    Threads can share a plan. It notices when modules of the network are replaced.

    Args:
        net: the network.
        x: a batch of the kind that will be passed.
        fast: also do what rounds differently.

    Attributes:
        try_closed_form: whether the one gradient that is wanted may be that of a linear head's
            input; False once it was not.
    """

    def __init__(self, net: nn.Module, x: Any, *, fast: bool = False) -> None:
        net = unwrap(net)
        given, x = x, prepare(net, x)
        self._fast = fast
        self.try_closed_form = True
        self._on_cpu = tensors_in(x)[0].device.type == "cpu"
        with kept_random_state(), explained(given):
            before = torch_states()
            self._watched = watch(net, rows(x, slice(1)))
            self._draws = not all(map(torch.equal, before, torch_states()))

    @property
    def pairs(self) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
        """What a pass folds, unless hooks or readings are in the way."""
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
        """A context for a pass: a network that draws even in eval mode leaves no trace of it."""
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
        structure = structure_of(replicas)
        watched = self._watched
        if watched.structure != structure:
            watched = self._watched = watch(net, rows(x, slice(1)))
        if watched.structure == structure:  # unless it is being changed right now
            fold(watched.foldable, read, replicas)


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
