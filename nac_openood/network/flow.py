"""What flows where in a network: one forward pass, recorded.

Every operation that makes new values out of the network's input is a node, with edges from the
nodes it reads. A view (reshape, permute, slice) belongs to the node it looks at, an operation in
place makes a new node. So a module's output is known by its node, whatever the code around it
does: a stage and its last block, a pooling layer and the dropout after it are one place.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.weak import WeakIdKeyDictionary

from nac_openood.network.inputs import Inputs
from nac_openood.network.random_state import kept_random_state
from nac_openood.network.replica import run

#: What is known of a tensor that is no node: made of weights and constants alone, or integers
#: that come from the input.
_STATIC, _INTEGERS = -1, -2


#: Products of data with weights, and the axis on which the neurons that they make lie.
PRODUCTS = {
    "convolution": 1,
    "mkldnn_convolution": 1,
    "linear": -1,
    "mkldnn_linear": -1,
    "addmm": -1,
    "mm": -1,
    "bmm": -1,
    "baddbmm": -1,
    "mkldnn_rnn_layer": -1,
    "_cudnn_rnn": -1,
    "miopen_rnn": -1,
}
_REDUCTIONS = ("mean", "sum", "amax", "amin", "max", "min", "var", "logsumexp")


class Look(NamedTuple):
    """How a tensor looks at the values of its node; `axis` is the one of the neurons, if known."""

    node: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    axis: Optional[int]


class Node(NamedTuple):
    """An operation: the nodes it reads and what it makes; `operand` if it multiplies by weights."""

    parents: tuple[int, ...]
    made: Look
    operand: Optional[Look]


class Call(NamedTuple):
    """The one call of a module: the range of the nodes made inside, and the tensors it returned.

    A module can be read if it returned one float tensor, and not a tuple or the like.
    """

    path: str
    module: nn.Module
    nodes: range
    outputs: tuple[Look, ...]
    readable: bool


class Flow(NamedTuple):
    """A recorded pass; `calls` are those of modules that ran once, in the order of their start."""

    nodes: list[Node]
    calls: list[Call]
    output: Any
    look: Callable[[Tensor], Optional[Look]]


class _Recorder(TorchDispatchMode):
    """Follows float tensors from the network's input through every operation."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self._axes: Any = WeakIdKeyDictionary()
        # a weak reference keeps the address of a storage, not its memory, from being used again
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        for tensor in [*net.parameters(), *net.buffers()]:
            self._place(tensor, _STATIC)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        taken = [(t, self._where(t)) for t in _tensors((args, kwargs))]
        addresses = {_address(t) for t, _ in taken}
        taken = [(t, place) for t, place in taken if place != _STATIC]
        looks = [self._look(t, place) for t, place in taken if place >= 0]
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        for made in _tensors(result):
            is_view = _address(made) in addresses and not func._schema.is_mutable
            if is_view and looks:
                self._axes[made] = axis_after(name, args, looks, made.shape)
            elif not is_view and not taken:
                self._place(made, _STATIC)
            elif not is_view:
                self._add(name, args, looks, made)
        return result

    def _add(self, name: str, args: Sequence[Any], looks: list[Look], made: Tensor) -> None:
        if not made.is_floating_point() and not made.is_complex():
            self._place(made, _INTEGERS)
            return
        self._axes[made] = axis_after(name, args, looks, made.shape)
        self._place(made, len(self.nodes))
        # a product of two activations, as in attention, has no weights
        operand = looks[0] if name in PRODUCTS and len(looks) == 1 else None
        parents = tuple(sorted({look.node for look in looks}))
        self.nodes.append(Node(parents, self._look(made, len(self.nodes)), operand))

    def _where(self, tensor: Tensor) -> int:
        found = self._storages.get(_address(tensor))
        if found is None:  # not a weight and not made by an operation: this is an input
            self._add("input", (), [], tensor)
            found = self._storages[_address(tensor)]
        return found[1]

    def _place(self, tensor: Tensor, place: int) -> None:
        self._storages[_address(tensor)] = (StorageWeakRef(tensor.untyped_storage()), place)

    def _look(self, tensor: Tensor, node: int) -> Look:
        axis = self._axes.get(tensor)
        return Look(node, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), axis)

    def look(self, tensor: Tensor) -> Optional[Look]:
        """The node of a float tensor that comes from the input, else None."""
        place = self._storages.get(_address(tensor), (None, _STATIC))[1]
        return self._look(tensor, place) if place >= 0 else None


def record(net: nn.Module, x: Inputs) -> Flow:
    """Run `net` once, in evaluation mode and without gradients, and record what flows where.

    Args:
        net: the network, without wrappers.
        x: a batch as it takes it.
    """
    recorder = _Recorder(net)
    calls: dict[str, list[Optional[Call]]] = {}
    starts: dict[str, int] = {}

    def before(path: str, module: nn.Module, inputs: Any) -> None:
        calls.setdefault(path, []).append(None)
        starts[path] = len(recorder.nodes)

    def after(path: str, module: nn.Module, inputs: Any, output: Any) -> None:
        nodes = range(starts[path], len(recorder.nodes))
        looks = [recorder.look(tensor) for tensor in _tensors(output)]
        found = tuple(look for look in looks if look is not None)
        readable = bool(found) and isinstance(output, Tensor)
        calls[path][-1] = Call(path, module, nodes, found, readable)

    modules = [(path, module) for path, module in net.named_modules() if path]
    with kept_random_state(), torch.inference_mode(False), torch.no_grad(), recorder:
        output = run(
            net,
            x,
            on_input=[(module, partial(before, path)) for path, module in modules],
            on_output=[(module, partial(after, path)) for path, module in modules],
            adapt=_layer_by_layer,
        )
    once = [found[0] for found in calls.values() if len(found) == 1]
    found = [one for one in once if one is not None and one.outputs]
    return Flow(recorder.nodes, found, output, recorder.look)


def axis_after(
    name: str, args: Sequence[Any], looks: list[Look], shape: Sequence[int]
) -> Optional[int]:
    """The axis of `shape` on which the neurons lie, after an operation on `looks`."""
    if name in PRODUCTS:  # of two activations (attention) it is not known
        return PRODUCTS[name] % len(shape) if len(looks) == 1 else None
    if name == "embedding":
        return len(shape) - 1
    # in a sum of branches the one that began first is the residual stream
    for look in sorted(looks, key=lambda look: look.node):
        axis = _moved(name, args, look, shape)
        if axis is not None:
            return axis
    if name.endswith("layer_norm"):
        return len(shape) - 1
    return 1 if "batch_norm" in name else None


def _moved(name: str, args: Sequence[Any], look: Look, shape: Sequence[int]) -> Optional[int]:
    """Where an operation puts the neurons of one of its inputs."""
    axis, dims = look.axis, len(look.shape)
    if axis is None:
        return None
    if name == "permute":
        return [d % dims for d in args[1]].index(axis)
    if name in ("transpose", "t"):
        first, second = (d % dims for d in args[1:3]) if name == "transpose" else (0, dims - 1)
        return {first: second, second: first}.get(axis, axis)
    if name in ("select", *_REDUCTIONS) and len(shape) < dims:
        gone = args[1] if len(args) > 1 and args[1] is not None else range(dims)
        gone = {d % dims for d in ([gone] if isinstance(gone, int) else gone)}
        return None if axis in gone else axis - sum(d < axis for d in gone)
    if math.prod(shape) == math.prod(look.shape):  # reshapes, operations on each element
        before, width = math.prod(look.shape[:axis]), look.shape[axis]
        axes = [i for i, n in enumerate(shape) if n == width and math.prod(shape[:i]) == before]
        return axes[0] if axes else None
    fits = len(shape) == dims and (name == "cat" or shape[axis] == look.shape[axis])
    return axis if fits else None


def _layer_by_layer(replicas: Mapping[nn.Module, nn.Module]) -> None:
    """Keep PyTorch's encoder layers from running as one fused operation, branches and all."""
    for replica in replicas.values():
        if isinstance(replica, nn.TransformerEncoderLayer):
            replica.activation_relu_or_gelu = 0


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_flatten(values)[0] if isinstance(value, Tensor)]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
