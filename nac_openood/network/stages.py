"""The stages of a network, found in a recorded pass.

A node is a *cut* if all that reaches the logits passes through it: the sum that ends a residual
block is one, the convolutions inside are not. A *block* is a module with branches inside that ends
in a cut. The last block before each change of resolution or width ends a stage. In a network
without branches, the layers between two products with weights take the place of a block.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import accumulate
from typing import Callable, Iterable, NamedTuple, Optional, Sequence

from torch import nn

from nac_openood.network.flow import Call, Flow, Look

#: With more stages than this, the width grows from block to block and says nothing.
_MOST_STAGES = 8
#: Networks such as HRNet keep up to four streams side by side, so that no node is a cut.
STREAMS = (1, 2, 3, 4)


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


class Stages(NamedTuple):
    """The ends of stages in forward order; `last` is None if all blocks have one size."""

    early: list[Place]
    last: Optional[Place]


class Survey:
    """A recorded pass, seen along the stream that most of it depends on.

    Args:
        flow: from `record`.
        sink: the node of the logits.
        batch: how many samples were passed.

    Attributes:
        stream: the nodes from the main input to the logits.
        readable: calls of modules that return one tensor with a row for each sample.
    """

    def __init__(self, flow: Flow, sink: int, batch: int) -> None:
        self.flow, self.batch = flow, batch
        starts = [n for n in range(sink + 1) if not flow.nodes[n].parents]
        # masks are inputs, too, but fewer weights are applied to them
        self.stream = max((Stream(flow, s, sink) for s in starts), key=lambda s: len(s.products))
        looks = [(call, call.outputs[0]) for call in flow.calls if call.readable]
        rows = [(call, look) for call, look in looks if look.shape[:1] == (batch,)]
        self.readable = [call for call, look in rows if len(look.shape) > 1 and layout_of(look)]
        self._readable_paths = {call.path for call in self.readable}

    def stages(self, end: int) -> Stages:
        """The stages up to the node `end`, which is what the head is given."""
        products = [n for n in self.stream.products if n <= end]
        some: list[Place] = []
        for streams in STREAMS:
            blocks = self._blocks(end, streams)
            inside = [n for n in products if any(n in place.block.nodes for place in blocks)]
            if blocks and 2 * len(inside) >= len(products):
                return self._of_blocks(blocks)
            cuts = [n for n in products if self.stream.is_cut(n)]
            if streams == 1 and 2 * len(cuts) >= len(products):
                return self._of_links(end)
            some = some or blocks
        return self._of_blocks(some)

    def _of_blocks(self, blocks: list[Place]) -> Stages:
        runs = _runs(blocks)
        if len(runs) < 2:
            return Stages(_quarters(_most_frequent_kind(blocks)), None)
        if len(runs) == 2:
            runs = [*self._plain_beginning(blocks), *runs]
        *early, last = self._outermost([run[-1] for run in runs])
        return Stages(early, last)

    def _of_links(self, end: int) -> Stages:
        links = self._links(end)
        # fully connected layers on top of feature maps belong to the head
        links = [p for p in links if p.size.positions > 1] or links
        runs = _runs(links)
        if len(runs) < 2:
            return Stages(_quarters(links), None)
        *early, last = self._outermost([run[-1] for run in runs])
        return Stages(early, None if last.node == end else last)

    def _outermost(self, places: Sequence[Place]) -> list[Place]:
        """Places read at the largest module that ends there and begins in the same stage."""
        named, before = [], self.stream.products[0]
        for place in places:
            calls = [c for c in self.readable if c.outputs[0].node == place.node]
            stage = next((c for c in calls if c.nodes.start > before), place.read)
            named.append(place._replace(read=stage))
            before = place.node
        return named

    # -- blocks ----------------------------------------------------------------------------

    def _blocks(self, end: int, streams: int) -> list[Place]:
        """The blocks up to the node `end`, in forward order."""
        ends = self._branch_ends(end, streams)
        found = [self._place(call, streams) for call in self.flow.calls]
        places = [place for place in found if place is not None and place.node <= end]
        blocks = _not_inside_others([p for p in places if self._is_block(p, ends)])
        # one without branches, because it changes the width, is known by its class
        kinds = {type(place.block.module) for place in blocks} - {nn.Sequential}
        alike = [p for p in places if type(p.block.module) in kinds and _ends_well(p, ends)]
        both = {place.block.path: place for place in [*blocks, *alike]}
        blocks = self._without_stem(_not_inside_others(list(both.values())))
        return sorted(blocks, key=lambda place: (place.node, place.block.nodes.start))

    def _place(self, block: Call, streams: int = 1) -> Optional[Place]:
        """The cut that a module ends in, if it can be read."""
        ends = [
            look
            for look in block.outputs
            if look.node in block.nodes and self.stream.is_cut(look.node, streams)
        ]
        end = max(ends, key=lambda look: look.node, default=None)
        read = self._reader(block, end) if end else None
        return Place(block, end.node, read, Size.of(read.outputs[0])) if end and read else None

    def _reader(self, block: Call, end: Look) -> Optional[Call]:
        """The block itself; if it returns a tuple, the next module with a tensor like it."""
        if block.readable:
            return block if block.path in self._readable_paths else None
        looks = [(call, call.outputs[0]) for call in reversed(self.readable)]
        alike = {o.node: c for c, o in looks if o.node == end.node or o.shape == end.shape}
        reached = reached_from(self.flow, end.node, len(self.flow.nodes) - 1)
        return next((alike[node] for node in reached if node in alike), None)

    def _branch_ends(self, end: int, streams: int) -> list[tuple[int, Size]]:
        """The nodes in which branches end, with their sizes."""
        nodes = [n for n in self.stream.waiting if n <= end]
        cuts = [self.stream.is_cut(n, streams) for n in nodes]
        joins = [n for n, was, now in zip(nodes[1:], cuts, cuts[1:]) if now and not was]
        made = [self.flow.nodes[n].made for n in joins]
        return [(look.node, Size.of(look)) for look in made if look.shape[:1] == (self.batch,)]

    def _is_block(self, place: Place, ends: Iterable[tuple[int, Size]]) -> bool:
        """Whether branches end inside, and nothing inside belongs to another stage."""
        nodes = place.block.nodes
        held = [size for node, size in ends if node in nodes]
        if not held or not all(map(place.size.same_resolution, held)):
            return False
        products = [n for n in self.stream.products if n in nodes and self.stream.is_cut(n)]
        sizes = [Size.of(self.flow.nodes[n].made) for n in products]
        return sum(not one.same_resolution(two) for one, two in zip(sizes, sizes[1:])) < 2

    def _is_stem(self, call: Call) -> bool:
        """Whether a module holds the network's first weights and changes the size."""
        made = self.flow.nodes[self.stream.source].made
        first = self.stream.products[0] if made.axis is None else made.node  # else an embedding
        return first in call.nodes and call.outputs[0].shape != made.shape

    def _without_stem(self, blocks: list[Place]) -> list[Place]:
        """Without blocks in the stem. A stage that holds the first weights is no stem."""
        others = [p for p in blocks if not self._is_stem(p.block)]
        stages = {type(p.block.module) for p in others if _is_made_of(p, others)} - {nn.Sequential}
        for call in filter(self._is_stem, self.flow.calls):
            inner = [p for p in blocks if p.node in call.nodes]
            is_stem = type(call.module) not in stages and len(_runs(inner)) == 1
            if is_stem and len(inner) < len(blocks):
                return [p for p in blocks if p not in inner]
        return blocks

    # -- links -----------------------------------------------------------------------------

    def _links(self, end: int) -> list[Place]:
        """In a chain of products: the last module behind each that keeps its size."""
        places = [p for p in map(self._place, self.flow.calls) if p is not None and p.node <= end]
        links = []
        for start, stop in zip(self.stream.products, [*self.stream.products[1:], end + 1]):
            size = Size.of(self.flow.nodes[start].made)
            mine = [p for p in places if start <= p.node < stop and p.size == size]
            links.extend(sorted(mine, key=lambda place: place.node)[-1:])
        return links

    def _plain_beginning(self, blocks: list[Place]) -> list[list[Place]]:
        """Stages without branches between the stem and the first block."""
        first = min(place.block.nodes.start for place in blocks)
        stems = [c for c in self.flow.calls if self._is_stem(c) and c.nodes.stop <= first]
        links = [p for p in self._links(first - 1) if not any(p.node in c.nodes for c in stems)]
        stem = Size.of(self.flow.nodes[self.stream.products[0]].made)
        runs = _grouped(links, Size.same_resolution)
        known = (stem, blocks[0].size)
        return [run for run in runs if not any(map(run[0].size.same_resolution, known))]


def _ends_well(place: Place, ends: Iterable[tuple[int, Size]]) -> bool:
    """Whether most branches inside end at the resolution of the output."""
    held = [size for node, size in ends if node in place.block.nodes]
    return 2 * sum(map(place.size.same_resolution, held)) >= len(held)


def _is_made_of(place: Place, blocks: Iterable[Place]) -> bool:
    """Whether a block consists of others, and is not one with squeeze-and-excitation inside."""
    inner = sum(len(p.block.nodes) for p in blocks if p.is_inside(place))
    return 2 * inner >= len(place.block.nodes)


def _not_inside_others(places: list[Place]) -> list[Place]:
    """Without what lies inside a block of another size."""
    return [
        p for p in places if not any(p.is_inside(q) and not p.size.same(q.size) for q in places)
    ]


def _runs(places: Sequence[Place]) -> list[list[Place]]:
    """Neighbors of one size; of one resolution, if the width changes too often."""
    runs = _grouped(places, Size.same)
    if len(runs) > _MOST_STAGES:
        runs = _grouped(places, Size.same_resolution)
    if len(runs) > _MOST_STAGES:  # streams of several resolutions take turns
        lasts = {place.size: place for place in places}
        runs = [[place] for place in places if lasts[place.size] is place]
    return runs


def _grouped(places: Sequence[Place], same: Callable[[Size, Size], bool]) -> list[list[Place]]:
    runs: list[list[Place]] = []
    for place in places:
        if runs and same(runs[-1][-1].size, place.size):
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs


def _most_frequent_kind(blocks: Sequence[Place]) -> list[Place]:
    """The blocks of one class; if two are equally frequent, of the one around the other."""
    counts = Counter(kind for kind, _ in {(type(p.block.module), p.node) for p in blocks})
    lengths: Counter[type] = Counter()
    for place in blocks:
        lengths[type(place.block.module)] += len(place.block.nodes)
    kind = max(counts, key=lambda k: (counts[k], lengths[k]), default=None)
    return list({p.node: p for p in blocks if type(p.block.module) is kind}.values())


def _quarters(blocks: Sequence[Place]) -> list[Place]:
    """The blocks at a quarter, half and three quarters of the depth."""
    indices = {math.ceil(len(blocks) * quarter / 4) - 1 for quarter in (1, 2, 3)}
    return [blocks[i] for i in sorted(indices) if i >= 0]
