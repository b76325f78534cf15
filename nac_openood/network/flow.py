"""A recorded forward pass of a network: which values are computed from which.

Every operation that makes new values out of the network's input is a node, with edges from the
nodes it reads. A view (reshape, permute, slice) belongs to the node of its values, an operation in
place makes a new node. So the output of a module is identified by its node, whatever the code
around it does: a stage and its last block, a pooling layer and the dropout after it have the same.

The recording also follows the dimension on which the neurons lie. A convolution puts them on
dimension 1, a linear layer on the last; reshapes and transposes move them. This distinguishes
`[batch, channels, length]` from `[batch, tokens, width]`, whatever the sizes are.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Mapping, NamedTuple, Optional, Sequence

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from nac_openood.network.inputs import Inputs, sample_count, tensors_in
from nac_openood.network.replica import kept_random_state, run

#: In place of a node: for tensors made of weights and constants only, and for integers made from
#: the input.
_STATIC, _INTEGERS = -1, -2

#: Products of data with weights, and the axis on which the neurons that they make lie.
_PRODUCTS = {
    **dict.fromkeys(("convolution", "mkldnn_convolution"), 1),
    **dict.fromkeys(("linear", "mkldnn_linear", "addmm", "mm", "bmm", "baddbmm"), -1),
    **dict.fromkeys(("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn"), -1),
}


class Size(NamedTuple):
    """How many positions a sample of a tensor has, and how many neurons at each."""

    positions: int
    width: int

    def same_resolution(self, other: Size) -> bool:
        """Nearly as many positions: unpadded convolutions crop, and class tokens are added."""
        few, many = sorted((self.positions, other.positions))
        return many <= 1.75 * few

    def same(self, other: Size) -> bool:
        """The same width and resolution."""
        return self.width == other.width and self.same_resolution(other)


class Traced(NamedTuple):
    """A tensor `[batch, ...]` that comes from the input.

    Args:
        node: what made it.
        shape: its shape.
        axis: the dimension of its neurons; None if the pass did not show it.
    """

    node: int
    shape: tuple[int, ...]
    axis: Optional[int]

    def _neurons(self) -> int:
        """The dimension of the neurons; a guess by the shape where it is unknown."""
        shape, dims = self.shape, len(self.shape)
        if self.axis:
            return self.axis
        is_square_before_last = dims > 3 and shape[1] == shape[2] != shape[-1]
        return dims - 1 if dims == 3 or is_square_before_last else 1

    @property
    def size(self) -> Size:
        """The size of one sample."""
        width = self.shape[self._neurons()]
        return Size(math.prod(self.shape[1:]) // max(width, 1), width)

    @property
    def layout(self) -> Optional[str]:
        """One of `LAYOUTS`; None where the neurons lie on a dimension in the middle."""
        dims, axis = len(self.shape), self._neurons()
        if dims == 2 or axis == 1:
            return "flat" if dims == 2 else "maps"
        if axis == dims - 1:
            return "tokens" if dims == 3 else "maps_last"
        return None


class Node(NamedTuple):
    """An operation: the nodes it reads and its result; `operand` if it multiplies by weights."""

    parents: tuple[int, ...]
    value: Traced
    operand: Optional[Traced]


class Call(NamedTuple):
    """The one call of a module: the range of the nodes made inside, and the tensors it returned.

    A module can be read if it returned one float tensor with a row for each sample.
    """

    path: str
    module: nn.Module
    nodes: range
    outputs: tuple[Traced, ...]
    readable: bool


class Recorder(TorchDispatchMode):
    """Follows float tensors from the network's input through every operation.

    Attributes:
        nodes: the operations, in the order in which they ran.
        calls: the calls of modules that ran once, in the order of their start.
        output: what the network returned.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.calls: list[Call] = []
        self.output: Any = None
        self._axes: Any = WeakIdKeyDictionary()
        # a weak reference keeps the address of a storage, not its memory, from being used again
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        for tensor in [*net.parameters(), *net.buffers()]:
            self._set_node(tensor, _STATIC)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if torch.is_inference_mode_enabled():  # where operations arrive in larger pieces
            with self:
                parts = func.decompose(*args, **(kwargs or {}))
            if parts is not NotImplemented:
                return parts
        read = [(t, self._node_of(t)) for t in tensors_in((args, kwargs))]
        addresses = {_address(t) for t, _ in read}
        read = [(t, node) for t, node in read if node != _STATIC]
        values = [self._value(t, node) for t, node in read if node >= 0]
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        for made in tensors_in(result):
            is_view = _address(made) in addresses and not func._schema.is_mutable
            if is_view and values:
                self._axes[made] = _axis_after(name, args, values, made.shape)
            elif not is_view and not read:
                self._set_node(made, _STATIC)
            elif not is_view:
                self._add(name, args, values, made)
        return result

    def _add(self, name: str, args: Sequence[Any], values: list[Traced], made: Tensor) -> None:
        if made.is_floating_point() or made.is_complex():
            self._axes[made] = _axis_after(name, args, values, made.shape)
            self._set_node(made, len(self.nodes))
        else:
            self._set_node(made, _INTEGERS)
            if not values:
                return
        # a product of two activations, as in attention, has no weights
        operand = values[0] if name in _PRODUCTS and len(values) == 1 else None
        parents = tuple(sorted({value.node for value in values}))
        self.nodes.append(Node(parents, self._value(made, len(self.nodes)), operand))

    def _node_of(self, tensor: Tensor) -> int:
        if _address(tensor) not in self._storages:  # neither a weight nor a result: an input
            self._add("input", (), [], tensor)
        return self._storages[_address(tensor)][1]

    def _set_node(self, tensor: Tensor, node: int) -> None:
        self._storages[_address(tensor)] = (StorageWeakRef(tensor.untyped_storage()), node)

    def _value(self, tensor: Tensor, node: int) -> Traced:
        return Traced(node, tuple(tensor.shape), self._axes.get(tensor))

    def computed_from(self, node: int) -> set[int]:
        """A node, and all nodes whose values depend on it."""
        found = {node}
        for number, other in enumerate(self.nodes):
            if not found.isdisjoint(other.parents):
                found.add(number)
        return found

    def value(self, tensor: Tensor) -> Optional[Traced]:
        """The value of a float tensor that comes from the input, else None."""
        node = self._storages.get(_address(tensor), (None, _STATIC))[1]
        return self._value(tensor, node) if node >= 0 else None


def record(net: nn.Module, x: Inputs) -> Recorder:
    """Run `net` once, in evaluation mode and without gradients, and record what is computed.

    Args:
        net: the network, without wrappers.
        x: a batch as it takes it.
    """
    recorder, batch = Recorder(net), sample_count(x)
    starts: dict[str, list[int]] = {}
    calls: dict[str, Call] = {}

    def before(path: str, module: nn.Module, inputs: Any) -> None:
        starts.setdefault(path, []).append(len(recorder.nodes))

    def after(path: str, module: nn.Module, inputs: Any, output: Any) -> None:
        nodes = range(starts[path][-1], len(recorder.nodes))
        found = tuple(filter(None, map(recorder.value, tensors_in(output))))
        has_rows = bool(found) and found[0].shape[:1] == (batch,) and len(found[0].shape) > 1
        readable = isinstance(output, Tensor) and has_rows and found[0].layout is not None
        calls[path] = Call(path, module, nodes, found, readable)

    modules = [(path, module) for path, module in net.named_modules() if path]
    depth = torch._C._len_torch_dispatch_stack()
    try:
        with kept_random_state(), torch.inference_mode(False), torch.no_grad(), recorder:
            recorder.output = run(
                net,
                x,
                on_input=[(module, partial(before, path)) for path, module in modules],
                on_output=[(module, partial(after, path)) for path, module in modules],
                adapt=_layer_by_layer,
            )
    finally:  # an interrupt inside of `__enter__` or `__exit__` would leave the recorder on
        while torch._C._len_torch_dispatch_stack() > depth:
            torch._C._pop_torch_dispatch_stack(None)
    once = [path for path, begun in starts.items() if len(begun) == 1 and path in calls]
    recorder.calls = [calls[path] for path in once if calls[path].outputs]
    return recorder


def foldable(net: nn.Module, x: Inputs) -> list[tuple[Any, Any, set[nn.Module]]]:
    """The BatchNorms that can be folded into convolutions, found by running `net`.

    In evaluation mode a BatchNorm is a multiplication and an addition per channel, which the
    convolution before it can do on the way.

    Args:
        net: the network, without wrappers.
        x: one sample, as a batch.

    Returns:
        An entry for each convolution whose output goes into a BatchNorm and nowhere else: the
        convolution, the BatchNorm, and all modules that return or take that output, including both.
    """
    recorded, found = record(net, x), []
    calls = [call for call in recorded.calls if "forward" not in vars(call.module)]
    norms = {n: call for call in calls if type(call.module) is nn.BatchNorm2d for n in call.nodes}
    for call in calls:
        if type(call.module) is not nn.Conv2d:
            continue
        made = call.outputs[0].node
        readers = [n for n, node in enumerate(recorded.nodes) if made in node.parents]
        norm = norms.get(readers[0]) if readers else None
        if norm is None or readers[-1] not in norm.nodes or norm.module.running_mean is None:
            continue
        between = {c.module for c in recorded.calls if (made in c.nodes) != (readers[0] in c.nodes)}
        found.append((call.module, norm.module, between))
    return found


def _axis_after(
    name: str, args: Sequence[Any], values: list[Traced], shape: Sequence[int]
) -> Optional[int]:
    """The axis of `shape` on which the neurons lie, after an operation on `values`."""
    if name in _PRODUCTS:  # of two activations (attention) it is not known
        return _PRODUCTS[name] % len(shape) if len(values) == 1 else None
    if name == "embedding":
        return len(shape) - 1
    # in a sum of branches the one that began first is the residual stream
    ordered = sorted(values, key=lambda value: value.node)
    axes = (_moved(name, args, value, shape) for value in ordered)
    return next((axis for axis in axes if axis is not None), None)


def _moved(name: str, args: Sequence[Any], value: Traced, shape: Sequence[int]) -> Optional[int]:
    """Where an operation puts the neurons of one of its inputs."""
    axis, dims = value.axis, len(value.shape)
    if axis is None:
        return None
    if name == "permute":
        return [d % dims for d in args[1]].index(axis)
    if name == "transpose":
        first, second = (d % dims for d in args[1:3])
        return {first: second, second: first}.get(axis, axis)
    if math.prod(shape) == math.prod(value.shape):  # reshapes, operations on each element
        before, width = math.prod(value.shape[:axis]), value.shape[axis]
        axes = [i for i, n in enumerate(shape) if n == width and math.prod(shape[:i]) == before]
        return axes[0] if axes else None
    fits = len(shape) == dims and (name == "cat" or shape[axis] == value.shape[axis])
    return axis if fits else None


def _layer_by_layer(replicas: Mapping[nn.Module, nn.Module]) -> None:
    """Keep PyTorch's encoder layers from running as one fused operation, branches and all."""
    for replica in replicas.values():
        if isinstance(replica, nn.TransformerEncoderLayer):
            replica.activation_relu_or_gelu = 0


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
