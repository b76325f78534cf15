"""`layers="auto"`: which layers to read in any classifier, found by running it once.

In a ResNet these are avgpool, which is the input of its head, and the ends of its stages: layer1 to
layer3, the early ones, and layer4, the last. No knowledge of the architecture is used: `flow.py`
records what is computed from what.

A node of the recording is a *cut* if every path to the logits passes through it: the sum that ends
a residual block is one, the convolutions inside are not. A *block* is a module with branches inside
that ends in a cut. The last block before each change of resolution or width ends a stage. In a
network without branches, the layers between two products with weights take the place of a block.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Callable, Iterable, NamedTuple, Optional, Sequence

import torch
from torch import nn

from nac_openood.errors import ProbeError
from nac_openood.network.architectures import Layer, describe, table_layers
from nac_openood.network.flow import Call, Recorder, Size, Traced, record
from nac_openood.network.inputs import logits_of, prepare, returned_logits, rows, sample_count
from nac_openood.network.probe import token_layouts
from nac_openood.network.replica import unwrap

#: How many samples are passed. Three, because other sizes are rarely three: windows and attention
#: heads come in twos and fours.
_SAMPLES = 3
#: With more stages than this, the width grows from block to block and is ignored.
_MOST_STAGES = 8


class AutoLayers(NamedTuple):
    """The layers that `layers="auto"` finds.

    Attributes:
        head_input: the input of the head, pooled to `[batch, D]`; where no module returns exactly
            that, the nearest module before it.
        early: what NAC+ reads, in forward order: the last block of each stage but the last. If all
            blocks have one size, as in a transformer, the blocks at a quarter, half and three
            quarters of the depth. If the network has no such blocks, the head's input.
    """

    head_input: Layer
    early: tuple[Layer, ...]

    @property
    def deepest_first(self) -> tuple[Layer, ...]:
        """The head's input and the early stages, each module once: what reference NAC reads."""
        layers = (self.head_input, *reversed(self.early))
        return tuple({layer.path: layer for layer in layers}.values())


def auto_layers(net: nn.Module, x: Any) -> AutoLayers:
    """Find the layers to read in `net` by running it once on a few samples.

    The network is left as it was: no hook, mode, gradient, statistic or random state changes.
    Layers that are in the architecture table have its names and layouts.

    Args:
        net: a classifier, also in DataParallel, DDP or torch.compile; paths include the wrapper.
        x: a batch for it, as a detector takes it; three samples are used.

    Raises:
        ProbeError: no layers were found; the message lists modules that can be named.
    """
    inner = unwrap(net)
    with torch.inference_mode(False):  # inference tensors cannot be modified outside of it
        x = prepare(inner, x)
        few = rows(x, torch.arange(_SAMPLES) % sample_count(x))
    recorded = record(inner, few)
    logits_of(recorded.output, few)  # refuses what is not logits
    structure = Structure(recorded)
    operand = structure.head_operand()
    nearest = None if operand is None else structure.nearest(operand.node)
    if operand is None or nearest is None:
        raise ProbeError(describe(net, "has no module that returns what its head is applied to. "))

    prefix = next(f"{path}." if path else "" for path, m in net.named_modules() if m is inner)
    calls = {call.path: call for call in recorded.calls}
    table = [row for row in table_layers(inner) if row.path in calls]

    def layer(block: Block) -> Layer:
        """The layer of a block, as in the table if that has the module or one inside it."""
        path = block.reader.path
        for row in table:
            same = calls[row.path].outputs[0].node == block.node
            if same or row.path.startswith(f"{path}."):
                return row._replace(path=prefix + row.path)
        return Layer(path, prefix + path, block.reader.outputs[0].layout)

    output = nearest.outputs[0]
    is_flat = output.node == operand.node and operand.shape[1:] == (math.prod(output.shape[1:]),)
    head_input = Layer(nearest.path, nearest.path, "flat" if is_flat else output.layout)
    for row in table_layers(inner)[:1]:
        if row in table and structure.is_after_products(calls[row.path], operand.node):
            head_input = row
    head_input = head_input._replace(path=prefix + head_input.path)
    if head_input.layout == "tokens":
        # the code between a layer and the head may take some of its tokens
        layouts = token_layouts(inner, few, {"": net.get_submodule(head_input.path)})
        head_input = head_input._replace(layout=layouts.get("") or "tokens")
    early = tuple(map(layer, structure.stages(operand.node)))
    return AutoLayers(head_input, early or (head_input,))


class Block(NamedTuple):
    """A module that ends in a cut: its call, the node of the cut, and the module to read there."""

    call: Call
    node: int
    reader: Call

    @property
    def size(self) -> Size:
        """The size of what is read."""
        return self.reader.outputs[0].size

    def is_inside(self, other: Block) -> bool:
        """Whether it is a smaller part of the other."""
        inner, outer = self.call.nodes, other.call.nodes
        return outer.start <= inner.start and inner.stop <= outer.stop and len(inner) < len(outer)


class Structure:
    """The structure of a network between its main input and its logits.

    Args:
        recorded: from `record`.

    Attributes:
        cuts: the nodes that every path to the logits passes through.
        products: the nodes that multiply by weights.
        readable: calls of modules that return one tensor with a row for each sample.
    """

    def __init__(self, recorded: Recorder) -> None:
        self.nodes, self.calls = recorded.nodes, recorded.calls
        returned = returned_logits(recorded.output)
        logits = None if returned is None else recorded.value(returned)
        end = -1 if logits is None else logits.node
        inputs = [n for n in range(end + 1) if not self.nodes[n].parents]
        # masks are inputs, too, but fewer weights are applied to them
        ways = [_way(recorded, source, end) for source in inputs]
        self._way = max(ways, key=lambda way: len(self._products(way)), default={})
        self.products = self._products(self._way)
        self.cuts = {node for node, is_cut in self._way.items() if is_cut}
        self.readable = [call for call in self.calls if call.readable]

    def _products(self, way: Iterable[int]) -> list[int]:
        return [node for node in way if self.nodes[node].operand is not None]

    # -- the head --------------------------------------------------------------------------

    def head_operand(self) -> Optional[Traced]:
        """The input of the last product; for several heads, the last value they have in common."""
        if not self.products:
            return None
        last = self.products[-1]
        if last in self.cuts:
            return self.nodes[last].operand
        return self.nodes[max(self.cuts.intersection(range(last)).difference(self.products))].value

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

    def stages(self, end: int) -> list[Block]:
        """The ends of all stages but the last up to the node `end`, in forward order.

        If all blocks have one size, those at the quarters of the depth.
        """
        products = [n for n in self.products if n <= end]
        modules = [b for b in map(self._block, self.calls) if b is not None and b.node <= end]
        blocks = self._blocks(modules, end)
        inside = [n for n in products if any(n in block.call.nodes for block in blocks)]
        is_chain = 2 * len(self.cuts.intersection(products)) >= len(products)
        is_chain &= not blocks or 2 * len(inside) < len(products)
        if is_chain:
            # fully connected layers on top of feature maps belong to the head
            links = self._links(modules, end)
            blocks = [link for link in links if link.size.positions > 1] or links
        runs = _grouped(blocks, Size.same)
        if len(runs) > _MOST_STAGES:
            runs = _grouped(blocks, Size.same_resolution)
        if len(runs) < 2:
            return _quarters(blocks if is_chain else _most_frequent_kind(blocks))
        if len(runs) == 2 and not is_chain:
            # add stages without branches, which lie between the stem and the first block
            known = (self.nodes[self.products[0]].value.size, blocks[0].size)
            links = self._links(modules, min(block.call.nodes.start for block in blocks) - 1)
            before = _grouped(links, Size.same_resolution)
            runs[:0] = [r for r in before if not any(map(r[0].size.same_resolution, known))]
        return self._outermost([run[-1] for run in runs[:-1]])

    def _outermost(self, blocks: Sequence[Block]) -> list[Block]:
        """Blocks read at the largest module that ends there and begins in the same stage."""
        found, before = [], self.products[0]
        for block in blocks:
            calls = [c for c in self.readable if c.outputs[0].node == block.node]
            stage = next((c for c in calls if c.nodes.start > before), block.reader)
            found.append(block._replace(reader=stage))
            before = block.node
        return found

    def _block(self, call: Call) -> Optional[Block]:
        """A module that ends in a cut, if it can be read there."""
        ends = [v for v in call.outputs if v.node in call.nodes and v.node in self.cuts]
        if not ends:
            return None
        end = max(ends, key=lambda value: value.node)
        # if it returns a tuple, read the next module that returns one tensor of the same shape
        alike = [c for c in self.readable if c.outputs[0].shape == end.shape]
        later = (c for c in alike if c.outputs[0].node >= end.node)
        reader = call if call.readable else next(later, None)
        return reader and Block(call, end.node, reader)

    def _blocks(self, modules: Sequence[Block], end: int) -> list[Block]:
        """The blocks up to the node `end`, in forward order."""
        nodes = [n for n in self._way if n <= end]
        joins = [b for a, b in zip(nodes, nodes[1:]) if b in self.cuts and a not in self.cuts]
        products = [n for n in self.products if n in self.cuts]
        ends = [v for v in (self.nodes[n].value for n in joins) if v.shape[:1] == (_SAMPLES,)]

        def has_branches(block: Block) -> bool:
            nodes = block.call.nodes
            sizes = [value.size for value in ends if value.node in nodes]
            if not sizes or not all(map(block.size.same_resolution, sizes)):
                return False
            # a part of the network that holds several stages is no block
            steps = [self.nodes[n].value.size for n in products if n in nodes]
            return sum(not a.same_resolution(b) for a, b in zip(steps, steps[1:])) < 2

        blocks = _not_inside_others([b for b in modules if has_branches(b)])
        # one without branches, because it changes the width, is known by its class
        kinds = {type(block.call.module) for block in blocks} - {nn.Sequential}
        alike = [b for b in modules if type(b.call.module) in kinds]
        both = {block.call.path: block for block in [*blocks, *alike]}
        blocks = _not_inside_others(list(both.values()))

        def changes_shape(block: Block) -> bool:
            # not the shape of the network's input: a class token may have been added since
            before = max((n for n in nodes if n < block.call.nodes.start), default=nodes[0])
            return block.reader.outputs[0].shape != self.nodes[before].value.shape

        # a stem that looks like a block has the first weights and changes the shape
        stem = [b for b in blocks if self.products[0] in b.call.nodes and changes_shape(b)]
        blocks = [b for b in blocks if b not in stem] or blocks
        return sorted(blocks, key=lambda block: (block.node, block.call.nodes.start))

    def _links(self, modules: Sequence[Block], end: int) -> list[Block]:
        """In a chain of products: the last module after each that keeps its size."""
        links = []
        for start, stop in zip(self.products, [*self.products[1:], end + 1]):
            size = self.nodes[start].value.size
            alike = [b for b in modules if start <= b.node < min(stop, end + 1) and b.size == size]
            links.extend(sorted(alike, key=lambda block: block.node)[-1:])
        return links


def _way(recorded: Recorder, source: int, sink: int) -> dict[int, bool]:
    """The nodes on paths from `source` to `sink`, in order, and whether every path uses them."""
    reached = recorded.computed_from(source)
    last_reader = {sink: sink}
    for node in range(sink, source, -1):
        if node in reached and node in last_reader:
            for parent in reached.intersection(recorded.nodes[node].parents):
                last_reader.setdefault(parent, node)
    way, furthest = {}, source
    for node in sorted(last_reader):
        way[node] = furthest <= node
        furthest = max(furthest, last_reader[node])
    return way if sink in reached else {}


def _not_inside_others(blocks: list[Block]) -> list[Block]:
    """Without what lies inside a block of another size."""
    return [
        b for b in blocks if not any(b.is_inside(c) and not b.size.same(c.size) for c in blocks)
    ]


def _grouped(blocks: Sequence[Block], same: Callable[[Size, Size], bool]) -> list[list[Block]]:
    """Runs of neighbors that have the same size."""
    runs: list[list[Block]] = []
    for block in blocks:
        if runs and same(runs[-1][-1].size, block.size):
            runs[-1].append(block)
        else:
            runs.append([block])
    return runs


def _most_frequent_kind(blocks: Sequence[Block]) -> list[Block]:
    """The blocks of the most frequent class; of two equally frequent ones, the enclosing one."""
    counts = Counter(kind for kind, _ in {(type(b.call.module), b.node) for b in blocks})

    def rank(kind: type) -> tuple[int, int]:
        return counts[kind], sum(len(b.call.nodes) for b in blocks if type(b.call.module) is kind)

    found = max(counts, key=rank, default=None)
    return list({b.node: b for b in blocks if type(b.call.module) is found}.values())


def _quarters(blocks: Sequence[Block]) -> list[Block]:
    """The blocks at a quarter, half and three quarters of the depth."""
    indices = {math.ceil(len(blocks) * quarter / 4) - 1 for quarter in (1, 2, 3)}
    return [blocks[i] for i in sorted(indices) if i >= 0]
