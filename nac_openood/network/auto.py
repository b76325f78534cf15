"""`layers="auto"`: which layers to read in any classifier, found by running it once.

A ResNet's are its avgpool, which the head is given, and the ends of its stages: layer1 to layer3,
which come early, and layer4, the last. Nothing is known of an architecture beforehand: `flow.py`
records what is computed from what, `stages.py` finds the blocks and where their size changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any, Iterable, Mapping, Optional, Sequence

import torch
from torch import Tensor, nn

from nac_openood.errors import ProbeError
from nac_openood.network.architectures import Layer, known_layers
from nac_openood.network.flow import Call, Look, record
from nac_openood.network.inputs import (
    Inputs,
    logits_of,
    prepare,
    returned_logits,
    rows,
    sample_count,
    token_mask,
)
from nac_openood.network.random_state import kept_random_state
from nac_openood.network.replica import run, unwrap
from nac_openood.network.stages import STREAMS, Place, Survey, layout_of

#: How many samples are passed. Windows and heads come in twos and fours, so three rows are samples.
_SAMPLES = 3
#: A class token and, in distilled networks, a second one beside it.
_CLASS_TOKENS = 2


@dataclass(frozen=True)
class AutoLayers:
    """The layers of a network that are worth reading.

    Attributes:
        head_input: what the head is given, pooled to `[batch, D]`; where no module returns
            exactly that, the nearest module before it.
        early: what NAC+ reads, in forward order: the last block of each stage but the last. If all
            blocks have one size, as in a transformer, the blocks at a quarter, half and three
            quarters of the depth. If the network has no such blocks, the head's input.
        last: the last block of the last stage; None if all blocks have one size.
    """

    head_input: Layer
    early: tuple[Layer, ...]
    last: Optional[Layer]

    @property
    def deepest_first(self) -> tuple[Layer, ...]:
        """The head's input and the early stages, each module once: what reference NAC reads."""
        layers = (self.head_input, *reversed(self.early))
        return tuple({layer.path: layer for layer in layers}.values())


def auto_layers(net: nn.Module, x: Any) -> AutoLayers:
    """The layers to read in `net`, found by running it once on a few samples.

    The network is left as it was: no hook, mode, gradient, statistic or random state changes.
    Layers that the architecture table knows have its names and layouts.

    Args:
        net: a classifier, also in DataParallel, DDP or torch.compile; paths include the wrapper.
        x: a batch for it, as a detector takes it; three samples are used.

    Raises:
        ProbeError: where nothing sensible is found, listing modules that can be named.
    """
    inner = unwrap(net)
    with torch.inference_mode(False):  # whose tensors nothing may overwrite outside of it
        x = prepare(inner, x)
        few = rows(x, torch.arange(_SAMPLES) % sample_count(x))
    flow = record(inner, few)
    logits = logits_of(flow.output, few)
    returned = returned_logits(flow.output)
    sink = None if returned is None else flow.look(returned)
    if sink is None:
        raise _nothing_found(net, "its logits do not depend on its input", flow.calls)
    found = _Choice(net, Survey(flow, sink.node, logits.shape[0])).layers()
    if found.head_input.layout != "tokens":
        return found
    # the code between a layer and the head may take some of its tokens in ways that make no view
    module = {"": net.get_submodule(found.head_input.path)}
    layout = token_layouts(inner, few, module).get("")
    return replace(found, head_input=replace(found.head_input, layout=layout or "tokens"))


class _Choice:
    """What of a survey to read, as layers of `net`."""

    def __init__(self, net: nn.Module, survey: Survey) -> None:
        self.net, self.survey = net, survey
        self.stream, self.flow = survey.stream, survey.flow
        inner = unwrap(net)
        path = next(path for path, module in net.named_modules() if module is inner)
        self.prefix = f"{path}." if path else ""
        self.known = known_layers(inner)
        self.calls = {call.path: call for call in self.flow.calls}

    def layers(self) -> AutoLayers:
        if not self.stream.products:
            raise self.nothing_found("no layer with weights is applied to its input")
        given = self.given_to_head()
        head_input = self.head_input(given)
        found, end = self.survey.stages(given.node)
        early = tuple(self.layer(place, inside=end is None) for place in found)
        last = None if end is None else self.layer(end)
        return AutoLayers(head_input, early or (head_input,), last)

    def given_to_head(self) -> Look:
        """What the last product is given; for several heads, what they have in common."""
        last = self.stream.products[-1]
        operand = self.flow.nodes[last].operand
        if self.stream.is_cut(last) and operand is not None:
            return operand
        for streams in STREAMS:
            before = [n for n in self.stream.waiting if n < last and n not in self.stream.products]
            cut = max(n for n in before if self.stream.is_cut(n, streams))
            if self.nearest(cut, streams):
                return self.flow.nodes[cut].made
        raise self.nothing_found("no module makes what its heads are given")

    def head_input(self, given: Look) -> Layer:
        same = [c for c in self.survey.readable if c.outputs[0].node == given.node]
        near = next(filter(None, (self.nearest(given.node, s) for s in STREAMS)), None)
        if near is None:
            raise self.nothing_found("no module returns what its head is given")
        for row in self.known[:1]:
            if row.path in self.calls and self.is_behind_products(self.calls[row.path], given.node):
                return replace(row, path=self.prefix + row.path)
        exact = [(call, _layout_given(call.outputs[0], given, self.survey.batch)) for call in same]
        call, layout = next(((c, found) for c, found in exact if found), (near, None))
        return Layer(call.path, self.prefix + call.path, layout or layout_of(call.outputs[0]))

    def nearest(self, node: int, streams: int) -> Optional[Call]:
        """The last module at or before a node, with no product between them."""
        calls = [c for c in self.survey.readable if self.is_behind_products(c, node)]
        cuts = [c for c in calls if self.stream.is_cut(c.outputs[0].node, streams)]
        return max(cuts, key=lambda call: call.outputs[0].node, default=None)

    def is_behind_products(self, call: Call, node: int) -> bool:
        product = max((n for n in self.stream.products if n <= node), default=0)
        return product <= call.outputs[0].node <= node

    def layer(self, place: Place, *, inside: bool = False) -> Layer:
        """A place as a layer: as the table has it, where it knows the place or one inside."""
        path = place.read.path
        for row in self.known:
            call = self.calls.get(row.path)
            if call and (
                call.outputs[0].node == place.node or (inside and row.path.startswith(f"{path}."))
            ):
                return replace(row, path=self.prefix + row.path)
        return Layer(path, self.prefix + path, layout_of(place.read.outputs[0]))

    def nothing_found(self, why: str) -> ProbeError:
        cuts = [c for c in self.survey.readable if self.stream.is_cut(c.outputs[0].node)]
        return _nothing_found(self.net, why, cuts or self.survey.readable)


def _layout_given(output: Look, given: Look, batch: int) -> Optional[str]:
    """The layout that makes what the head is given of a module's output; None if none does."""
    if given.shape[0] != batch or len(given.shape) != 2:  # a head on every position
        return layout_of(output) if math.prod(given.shape) == math.prod(output.shape) else None
    if math.prod(given.shape) == math.prod(output.shape):
        return "flat"
    first = (output.stride[0], output.stride[-1])
    is_first = given.offset == output.offset and given.stride == first
    return "class_token" if is_first and len(output.shape) == 3 else None


def _nothing_found(net: nn.Module, why: str, calls: Iterable[Call]) -> ProbeError:
    shown = [f"{call.path} {list(call.outputs[0].shape)}" for call in calls if call.readable][:24]
    example = shown[0].split()[0] if shown else "layer3"
    return ProbeError(
        f"no layers could be chosen in {type(net).__name__} by running it: {why}. Name layers by "
        f"module path, e.g. `layers=['{example}']`. Modules that return one tensor: "
        f"{', '.join(shown) or 'none'}."
    )


def with_layouts(net: nn.Module, x: Any, layers: Mapping[str, Layer]) -> Optional[dict[str, Layer]]:
    """The layers, with layouts where they had none and return tokens `[batch, tokens, width]`.

    Args:
        net: the network.
        x: a batch for it; three samples are used.
        layers: by name.

    Returns:
        None if the batch cannot tell, because its sequences have one token only.
    """
    unknown = {n: net.get_submodule(layer.path) for n, layer in layers.items() if not layer.layout}
    if not unknown:
        return dict(layers)
    inner = unwrap(net)
    found = token_layouts(inner, rows(prepare(inner, x), slice(_SAMPLES)), unknown)
    if None in found.values():
        return None
    named = {name: replace(layers[name], layout=layout) for name, layout in found.items()}
    return {**layers, **named}


def token_layouts(
    net: nn.Module, x: Inputs, modules: Mapping[str, nn.Module]
) -> dict[str, Optional[str]]:
    """The layouts of modules that return tokens, by name; None where a batch cannot tell.

    Args:
        net: the network, without wrappers.
        x: a batch as it takes it.
        modules: of `net`, by name.
    """
    batch, mask = sample_count(x), token_mask(net, x)
    seen: dict[str, Tensor] = {}

    def observe(name: str, module: nn.Module, inputs: Any, output: Any) -> Optional[Tensor]:
        is_tokens = isinstance(output, Tensor) and output.ndim == 3 and output.is_floating_point()
        if not is_tokens or output.shape[0] != batch:
            return None
        seen[name] = output if output.requires_grad else output.detach().requires_grad_()
        return seen[name].clone()  # an operation in place must not change what was seen

    observers = [(module, partial(observe, name)) for name, module in modules.items()]
    gradients: Sequence[Optional[Tensor]] = ()
    with kept_random_state(), torch.inference_mode(False), torch.enable_grad():
        try:
            logits = returned_logits(run(net, x, on_output=observers))
            if seen and logits is not None and logits.requires_grad:
                # of no equal parts, which might cancel
                by = torch.arange(1, logits.shape[-1] + 1, device=logits.device)
                total = (logits.float() * by).sum()
                gradients = torch.autograd.grad(total, list(seen.values()), allow_unused=True)
        except RuntimeError:  # no gradient can be computed: then all tokens count
            gradients = ()
    return {
        name: "tokens" if gradient is None else _layout((gradient != 0).any(dim=2), mask)
        for name, gradient in zip_longest(seen, gradients)
    }


def _layout(read: Tensor, mask: Optional[Tensor]) -> Optional[str]:
    """The layout of tokens of which some are `read`, bool `[batch, tokens]`; None if unclear."""
    if mask is None or mask.shape != read.shape:
        mask = torch.ones_like(read)
    read, mask = read.cpu(), mask.cpu()
    longer = mask.sum(dim=1) > 1
    if not longer.any():
        return None
    read, mask = (read & mask)[longer], mask[longer]
    places = torch.arange(read.shape[1])
    last = (mask * places).amax(dim=1, keepdim=True)
    if bool((read == (places == last)).all()):
        return "last_token"
    # in short sequences, two tokens may be all there are
    classes = _CLASS_TOKENS if int(mask.sum(dim=1).max()) > _CLASS_TOKENS + 1 else 1
    is_class = bool(read[:, 0].all()) and not bool(read[:, classes:].any())
    return "class_token" if is_class else "tokens"
