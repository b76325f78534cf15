"""Places in a recorded pass: how large a tensor is, how it is laid out, what passes it by."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import NamedTuple, Optional

from nac_openood.network.axes import Look
from nac_openood.network.flow import Call, Flow


def axis_of(look: Look) -> int:
    """The dimension of the neurons; a guess by the shape where the pass did not show it."""
    shape, dims = look.shape, len(look.shape)
    if look.axis is not None and look.axis > 0:
        return look.axis
    is_square_before_last = dims > 3 and shape[1] == shape[2] != shape[-1]
    return dims - 1 if dims == 3 or is_square_before_last else 1


def layout_of(look: Look) -> Optional[str]:
    """One of `LAYOUTS`; None where the neurons lie on a dimension in the middle."""
    dims, axis = len(look.shape), axis_of(look)
    if dims == 2 or axis == 1:
        return "flat" if dims == 2 else "maps"
    if axis == dims - 1:
        return "tokens" if dims == 3 else "maps_last"
    return None


class Size(NamedTuple):
    """How many positions a tensor has, and how many neurons at each."""

    positions: int
    width: int

    @classmethod
    def of(cls, look: Look) -> Size:
        """The size of one sample of a tensor `[batch, ...]`."""
        width = look.shape[axis_of(look)]
        return cls(math.prod(look.shape[1:]) // max(width, 1), width)

    def same_resolution(self, other: Size) -> bool:
        """Nearly as many positions: unpadded convolutions crop, and class tokens are added."""
        few, many = sorted((self.positions, other.positions))
        return many <= 1.75 * few or (few > 4 and many - few <= 2)

    def same(self, other: Size) -> bool:
        """The same width and resolution."""
        return self.width == other.width and self.same_resolution(other)


class Place(NamedTuple):
    """The end of a block: its node, and the module to read there."""

    block: Call
    node: int
    read: Call
    size: Size

    def is_inside(self, other: Place) -> bool:
        """Whether its block is a smaller part of the other's."""
        inner, outer = self.block.nodes, other.block.nodes
        return outer.start <= inner.start and inner.stop <= outer.stop and len(inner) < len(outer)


def reached_from(flow: Flow, source: int, last: int) -> list[int]:
    """The nodes up to `last` that depend on `source`, which is the first of them, in order."""
    reached = {source: None}
    for node in range(source + 1, last + 1):
        if not reached.keys().isdisjoint(flow.nodes[node].parents):
            reached[node] = None
    return list(reached)


class Stream:
    """The nodes between one of the network's inputs and its logits.

    Args:
        flow: from `record`.
        source: the node of the input.
        sink: the node of the logits.

    Attributes:
        source: the node of the input.
        waiting: by node, how many older values are still to be read when it is made; 0 at a cut.
        products: the nodes that multiply by weights.
    """

    def __init__(self, flow: Flow, source: int, sink: int) -> None:
        reached = set(reached_from(flow, source, sink))
        last_reader = {sink: sink}
        for node in range(sink, source, -1):
            if node in reached and node in last_reader:
                for parent in reached.intersection(flow.nodes[node].parents):
                    last_reader.setdefault(parent, node)
        steps = [0] * (sink + 2)
        for node, reader in last_reader.items():
            steps[node + 1] += 1
            steps[max(reader, node + 1)] -= 1
        waiting = list(accumulate(steps))
        self.source = source
        self.waiting = {n: waiting[n] for n in sorted(last_reader)} if sink in reached else {}
        self.products = [n for n in self.waiting if flow.nodes[n].operand is not None]

    def is_cut(self, node: int, streams: int = 1) -> bool:
        """Whether no more than `streams - 1` values pass the node by."""
        return self.waiting.get(node, streams) < streams
