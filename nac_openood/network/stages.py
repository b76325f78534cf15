"""The structure of a network, found in a recorded pass: its head, its blocks, its stages.

A node is a *cut* if every path to the logits passes through it: the sum that ends a residual block
is one, the convolutions inside are not. A *block* is a module with branches inside that ends
in a cut. The last block before each change of resolution or width ends a stage. In a network
without branches, the layers between two products with weights take the place of a block.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import accumulate
from typing import Callable, Iterable, NamedTuple, Optional, Sequence

from torch import nn

from nac_openood.network.flow import Call, Node, Recorder, Traced

#: With more stages than this, the width grows from block to block and is ignored.
_MOST_STAGES = 8


def axis_of(value: Traced) -> int:
    """The dimension of the neurons; a guess by the shape where the pass did not show it."""
    shape, dims = value.shape, len(value.shape)
    if value.axis is not None and value.axis > 0:
        return value.axis
    is_square_before_last = dims > 3 and shape[1] == shape[2] != shape[-1]
    return dims - 1 if dims == 3 or is_square_before_last else 1


def layout_of(value: Traced) -> Optional[str]:
    """One of `LAYOUTS`; None where the neurons lie on a dimension in the middle."""
    dims, axis = len(value.shape), axis_of(value)
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
    def of(cls, value: Traced) -> Size:
        """The size of one sample of a tensor `[batch, ...]`."""
        width = value.shape[axis_of(value)]
        return cls(math.prod(value.shape[1:]) // max(width, 1), width)

    def same_resolution(self, other: Size) -> bool:
        """Nearly as many positions: unpadded convolutions crop, and class tokens are added."""
        few, many = sorted((self.positions, other.positions))
        return many <= 1.75 * few or (few > 4 and many - few <= 2)

    def same(self, other: Size) -> bool:
        """The same width and resolution."""
        return self.width == other.width and self.same_resolution(other)


class Block(NamedTuple):
    """A module that ends in a cut: its call, the node of the cut, and the module to read there."""

    call: Call
    node: int
    reader: Call
    size: Size

    def is_inside(self, other: Block) -> bool:
        """Whether it is a smaller part of the other."""
        inner, outer = self.call.nodes, other.call.nodes
        return outer.start <= inner.start and inner.stop <= outer.stop and len(inner) < len(outer)


class Structure:
    """The structure of a network between its main input and its logits.

    Args:
        recorded: from `record`.
        logits: the node of the logits.
        batch: how many samples were passed.

    Attributes:
        cuts: the nodes that every path to the logits passes through.
        products: the nodes that multiply by weights.
        readable: calls of modules that return one tensor with a row for each sample.
    """

    def __init__(self, recorded: Recorder, logits: int, batch: int) -> None:
        self.nodes, self.calls, self.batch = recorded.nodes, recorded.calls, batch
        inputs = [n for n in range(logits + 1) if not self.nodes[n].parents]
        # masks are inputs, too, but fewer weights are applied to them
        ways = [_pending(self.nodes, source, logits) for source in inputs]
        self._pending = max(ways, key=lambda way: len(self._products(way)))
        self.products = self._products(self._pending)
        self.cuts = {node for node, pending in self._pending.items() if not pending}
        self.readable = [
            call
            for call in self.calls
            if call.readable and self._has_rows(call.outputs[0]) and layout_of(call.outputs[0])
        ]

    def _products(self, way: Iterable[int]) -> list[int]:
        return [node for node in way if self.nodes[node].operand is not None]

    def _has_rows(self, value: Traced) -> bool:
        return len(value.shape) > 1 and value.shape[0] == self.batch

    # -- the head --------------------------------------------------------------------------

    def head_operand(self) -> Optional[Traced]:
        """What the last product is applied to; for several heads, what they have in common."""
        last = self.products[-1]
        if last in self.cuts:
            return self.nodes[last].operand
        cut = max(n for n in self.cuts if n < last and n not in self.products)
        return self.nodes[cut].value if self.nearest(cut) else None

    def nearest(self, node: int) -> Optional[Call]:
        """The last module at or before a node, with no product between them."""
        calls = [c for c in self.readable if self.is_after_products(c, node)]
        cuts = [c for c in calls if c.outputs[0].node in self.cuts]
        return max(cuts, key=lambda call: call.outputs[0].node, default=None)

    def is_after_products(self, call: Call, node: int) -> bool:
        """Whether a module ends at or before a node, with no product between them."""
        product = max((n for n in self.products if n <= node), default=0)
        return product <= call.outputs[0].node <= node

    # -- stages ----------------------------------------------------------------------------

    def stages(self, end: int) -> tuple[list[Block], Optional[Block]]:
        """The ends of the stages up to the node `end`, in forward order, and the last end.

        The latter is None if all blocks have one size.
        """
        products = [n for n in self.products if n <= end]
        blocks = self._blocks(end)
        inside = [n for n in products if any(n in block.call.nodes for block in blocks)]
        is_chain = 2 * len(self.cuts.intersection(products)) >= len(products)
        is_chain &= not blocks or 2 * len(inside) < len(products)
        if is_chain:
            # fully connected layers on top of feature maps belong to the head
            links = self._links(end)
            blocks = [link for link in links if link.size.positions > 1] or links
        runs = _runs(blocks)
        if len(runs) < 2:
            return _quarters(blocks if is_chain else _most_frequent_kind(blocks)), None
        if len(runs) == 2 and not is_chain:
            runs = [*self._links_before(blocks), *runs]
        *early, last = self._outermost([run[-1] for run in runs])
        return early, None if is_chain and last.node == end else last

    def _outermost(self, blocks: Sequence[Block]) -> list[Block]:
        """Blocks read at the largest module that ends there and begins in the same stage."""
        found, before = [], self.products[0]
        for block in blocks:
            calls = [c for c in self.readable if c.outputs[0].node == block.node]
            stage = next((c for c in calls if c.nodes.start > before), block.reader)
            found.append(block._replace(reader=stage))
            before = block.node
        return found

    def _blocks(self, end: int) -> list[Block]:
        """The blocks up to the node `end`, in forward order."""
        ends = self._branch_ends(end)
        modules = [b for b in map(self._block, self.calls) if b is not None and b.node <= end]
        blocks = _not_inside_others([b for b in modules if self._has_branches(b, ends)])
        # one without branches, because it changes the width, is known by its class
        kinds = {type(block.call.module) for block in blocks} - {nn.Sequential}
        alike = [b for b in modules if type(b.call.module) in kinds]
        both = {block.call.path: block for block in [*blocks, *alike]}
        blocks = self._without_stem(_not_inside_others(list(both.values())))
        return sorted(blocks, key=lambda block: (block.node, block.call.nodes.start))

    def _block(self, call: Call) -> Optional[Block]:
        """A module that ends in a cut, if it can be read there."""
        ends = [v for v in call.outputs if v.node in call.nodes and v.node in self.cuts]
        end = max(ends, key=lambda value: value.node, default=None)
        reader = self._reader(call, end) if end else None
        return Block(call, end.node, reader, Size.of(reader.outputs[0])) if end and reader else None

    def _reader(self, call: Call, end: Traced) -> Optional[Call]:
        """The module itself; if it returns a tuple, the next module with a tensor like it."""
        if call.readable:
            return call if call in self.readable else None
        alike = [c for c in self.readable if c.outputs[0].shape == end.shape]
        return next((c for c in alike if c.outputs[0].node >= end.node), None)

    def _branch_ends(self, end: int) -> list[tuple[int, Size]]:
        """The nodes in which branches end, with their sizes."""
        nodes = [n for n in self._pending if n <= end]
        joins = [b for a, b in zip(nodes, nodes[1:]) if b in self.cuts and a not in self.cuts]
        made = [self.nodes[n].value for n in joins]
        return [(v.node, Size.of(v)) for v in made if v.shape[:1] == (self.batch,)]

    def _has_branches(self, block: Block, ends: Iterable[tuple[int, Size]]) -> bool:
        """Whether branches end inside, and nothing inside belongs to another stage."""
        nodes = block.call.nodes
        inside = [size for node, size in ends if node in nodes]
        if not inside or not all(map(block.size.same_resolution, inside)):
            return False
        sizes = [
            Size.of(self.nodes[n].value) for n in self.products if n in nodes and n in self.cuts
        ]
        return sum(not one.same_resolution(two) for one, two in zip(sizes, sizes[1:])) < 2

    def _is_stem(self, call: Call) -> bool:
        """Whether a module holds the network's first weights and changes the size."""
        made = self.nodes[next(iter(self._pending))].value
        first = self.products[0] if made.axis is None else made.node  # else an embedding
        return first in call.nodes and call.outputs[0].shape != made.shape

    def _without_stem(self, blocks: list[Block]) -> list[Block]:
        """Without blocks in the stem, which has one size only."""
        for call in filter(self._is_stem, self.calls):
            inner = [block for block in blocks if block.node in call.nodes]
            if len(_runs(inner)) == 1 and len(inner) < len(blocks):
                return [block for block in blocks if block not in inner]
        return blocks

    def _links(self, end: int) -> list[Block]:
        """In a chain of products: the last module after each that keeps its size."""
        modules = [b for b in map(self._block, self.calls) if b is not None and b.node <= end]
        links = []
        for start, stop in zip(self.products, [*self.products[1:], end + 1]):
            size = Size.of(self.nodes[start].value)
            alike = [b for b in modules if start <= b.node < stop and b.size == size]
            links.extend(sorted(alike, key=lambda block: block.node)[-1:])
        return links

    def _links_before(self, blocks: list[Block]) -> list[list[Block]]:
        """Stages without branches between the stem and the first block."""
        first = min(block.call.nodes.start for block in blocks)
        sizes = (Size.of(self.nodes[self.products[0]].value), blocks[0].size)
        runs = _grouped(self._links(first - 1), Size.same_resolution)
        return [run for run in runs if not any(map(run[0].size.same_resolution, sizes))]


def _reached_from(nodes: Sequence[Node], source: int, last: int) -> list[int]:
    """The nodes up to `last` that depend on `source`, which is the first of them, in order."""
    reached = {source: None}
    for node in range(source + 1, last + 1):
        if not reached.keys().isdisjoint(nodes[node].parents):
            reached[node] = None
    return list(reached)


def _pending(nodes: Sequence[Node], source: int, sink: int) -> dict[int, int]:
    """The nodes between two: how many older values are still to be read when each is made."""
    reached = set(_reached_from(nodes, source, sink))
    last_reader = {sink: sink}
    for node in range(sink, source, -1):
        if node in reached and node in last_reader:
            for parent in reached.intersection(nodes[node].parents):
                last_reader.setdefault(parent, node)
    steps = [0] * (sink + 2)
    for node, reader in last_reader.items():
        steps[node + 1] += 1
        steps[max(reader, node + 1)] -= 1
    pending = list(accumulate(steps))
    return {n: pending[n] for n in sorted(last_reader)} if sink in reached else {}


def _not_inside_others(blocks: list[Block]) -> list[Block]:
    """Without what lies inside a block of another size."""
    return [
        b for b in blocks if not any(b.is_inside(c) and not b.size.same(c.size) for c in blocks)
    ]


def _runs(blocks: Sequence[Block]) -> list[list[Block]]:
    """Neighbors of one size; of one resolution, if the width changes too often."""
    runs = _grouped(blocks, Size.same)
    return runs if len(runs) <= _MOST_STAGES else _grouped(blocks, Size.same_resolution)


def _grouped(blocks: Sequence[Block], same: Callable[[Size, Size], bool]) -> list[list[Block]]:
    runs: list[list[Block]] = []
    for block in blocks:
        if runs and same(runs[-1][-1].size, block.size):
            runs[-1].append(block)
        else:
            runs.append([block])
    return runs


def _most_frequent_kind(blocks: Sequence[Block]) -> list[Block]:
    """The blocks of one class; if two are equally frequent, of the one around the other."""
    counts = Counter(kind for kind, _ in {(type(b.call.module), b.node) for b in blocks})
    lengths: Counter[type] = Counter()
    for block in blocks:
        lengths[type(block.call.module)] += len(block.call.nodes)
    kind = max(counts, key=lambda k: (counts[k], lengths[k]), default=None)
    return list({b.node: b for b in blocks if type(b.call.module) is kind}.values())


def _quarters(blocks: Sequence[Block]) -> list[Block]:
    """The blocks at a quarter, half and three quarters of the depth."""
    indices = {math.ceil(len(blocks) * quarter / 4) - 1 for quarter in (1, 2, 3)}
    return [blocks[i] for i in sorted(indices) if i >= 0]
