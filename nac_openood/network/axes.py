"""On which dimension of a tensor the neurons lie, followed through the operations of a pass.

A convolution puts them on dimension 1, a linear layer on the last; reshapes and transposes move
them. So `[batch, channels, length]` is told from `[batch, tokens, width]`, whatever the sizes are.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional, Sequence

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
