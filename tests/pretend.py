"""A pretended device: tensors say that they lie on it, but their numbers lie on the CPU.

Machines without a GPU cannot tell which operations would make the CPU wait for one. Here, tensors
claim to be on PyTorch's `meta` device, so that code takes the paths it takes on a GPU, while every
operation is computed on the CPU and noted if it would wait. As on a GPU, tensors of the device and
of the CPU do not mix.
"""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
aten = torch.ops.aten

#: Operations whose result the CPU must have before it can go on: a number, or a shape.
WAITS = {
    aten._local_scalar_dense, aten.item, aten.equal, aten.is_nonzero, aten.nonzero,
    aten.masked_select, aten.unique_dim, aten.unique_consecutive, aten._unique, aten._unique2,
    aten.bincount, aten.repeat_interleave, aten.argwhere,
}  # fmt: skip
#: Operations that CPU tensors may take part in.
COPIES = {aten.copy_, aten._to_copy, aten.index, aten.index_put_, aten.index_put}


class Pretended(torch.Tensor):
    """A tensor of the device; `numbers` lie on the CPU."""

    @staticmethod
    def __new__(cls, real):
        return torch.Tensor._make_wrapper_subclass(
            cls, real.shape, strides=real.stride(), storage_offset=real.storage_offset(),
            dtype=real.dtype, device=DEVICE, requires_grad=real.requires_grad,
        )  # fmt: skip

    def __init__(self, real):
        self.numbers = real.detach()

    def data_ptr(self):
        return self.numbers.data_ptr()

    def __repr__(self):
        return f"Pretended({self.numbers})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("a tensor of the pretended device outlived its `Device`")


class Device(TorchDispatchMode):
    """Pretends, inside a `with` block, that `DEVICE` is a GPU.

    Attributes:
        waited: how often the CPU would have waited, by the name of the operation.
    """

    def __init__(self):
        super().__init__()
        self.waited = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        ours = [tensor for tensor in tensors if isinstance(tensor, Pretended)]
        to = kwargs.get("device")
        here = bool(ours) if to is None else torch.device(to).type == DEVICE.type
        self._note(func, args, kwargs, ours, here)
        self._refuse_mixing(func, tensors, ours)
        if here and to is not None:
            kwargs["device"] = torch.device("cpu")
        args, kwargs = tree_map(_real, (args, kwargs))
        if func is aten._to_copy.default and not kwargs.get("dtype") and here != bool(ours):
            result = args[0].clone()  # on one device, no copy would be made
        else:
            result = func(*args, **kwargs)
        # operations in place return what they were given, not a tensor like it
        known = {id(tensor.numbers): tensor for tensor in ours}
        return tree_map(lambda leaf: _pretend(leaf, known), result) if here else result

    def _note(self, func, args, kwargs, ours, here):
        packet = func.overloadpacket
        name = str(packet).rpartition(".")[2]
        if packet in WAITS and ours:
            self.waited[name] += 1
        elif packet in (aten.index, aten.index_put_, aten.index_put) and ours:
            index = [i for i in args[1] if i is not None]
            self.waited[f"{name} by booleans"] += any(i.dtype == torch.bool for i in index)
            self.waited[f"{name} by CPU numbers"] += any(
                not isinstance(i, Pretended) for i in index
            )
        elif packet is aten._to_copy and bool(ours) != here and not kwargs.get("non_blocking"):
            self.waited["copy to the device" if here else "copy to the CPU"] += 1
        elif packet is aten.copy_ and len({isinstance(t, Pretended) for t in args[:2]}) == 2:
            self.waited["copy_"] += not (len(args) > 2 and args[2])
        self.waited = +self.waited

    @staticmethod
    def _refuse_mixing(func, tensors, ours):
        if func.overloadpacket in COPIES or not ours:
            return
        for tensor in tensors:
            if not isinstance(tensor, Pretended) and tensor.ndim:
                raise RuntimeError(f"{func}: expected all tensors to be on the same device")


def _real(leaf):
    return leaf.numbers if isinstance(leaf, Pretended) else leaf


def _pretend(leaf, known):
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return known[id(leaf)] if id(leaf) in known else Pretended(leaf)
