"""`layers="auto"`: which layers to read in any classifier, found by running it once.

In a ResNet these are avgpool, which is the input of its head, and the ends of its stages: layer1 to
layer3, the early ones, and layer4, the last. No knowledge of the architecture is used: `flow.py`
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
from nac_openood.network.architectures import Layer, table_layers
from nac_openood.network.flow import Call, Traced, record
from nac_openood.network.inputs import (
    Inputs,
    logits_of,
    prepare,
    returned_logits,
    rows,
    sample_count,
    token_mask,
)
from nac_openood.network.replica import kept_random_state, run, unwrap
from nac_openood.network.stages import Block, Structure, layout_of

#: How many samples are passed: three, because windows and heads come in twos and fours.
_SAMPLES = 3
#: A class token and, in distilled networks, a second one beside it.
_CLASS_TOKENS = 2


@dataclass(frozen=True)
class AutoLayers:
    """The layers of a network that are worth reading.

    Attributes:
        head_input: the input of the head, pooled to `[batch, D]`; where no module returns exactly
            that, the nearest module before it.
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
    batch = logits_of(recorded.output, few).shape[0]
    returned = returned_logits(recorded.output)
    logits = None if returned is None else recorded.value(returned)
    if logits is None:
        raise _nothing_found(net, "its logits do not depend on its input", recorded.calls)
    structure = Structure(recorded, logits.node, batch)
    cuts = [call for call in structure.readable if call.outputs[0].node in structure.cuts]
    nothing_found = partial(_nothing_found, net, calls=cuts or structure.readable)
    if not structure.products:
        raise nothing_found("no layer with weights is applied to its input")
    operand = structure.head_operand()
    near = None if operand is None else structure.nearest(operand.node)
    if operand is None or near is None:
        raise nothing_found("no module returns what its head is applied to")

    prefix = next(path for path, module in net.named_modules() if module is inner)
    prefix = f"{prefix}." if prefix else ""
    calls = {call.path: call for call in recorded.calls}
    known = [row for row in table_layers(inner) if row.path in calls]

    def layer(block: Block, inside: bool) -> Layer:
        """The layer of a block, as in the table if that has the module or one inside it."""
        path = block.reader.path
        for row in known:
            same = calls[row.path].outputs[0].node == block.node
            if same or (inside and row.path.startswith(f"{path}.")):
                return replace(row, path=prefix + row.path)
        return Layer(path, prefix + path, layout_of(block.reader.outputs[0]))

    exact = [call for call in structure.readable if call.outputs[0].node == operand.node]
    head_input = _head_input(exact[0] if exact else near, operand if exact else None, batch)
    for row in table_layers(inner)[:1]:
        if row in known and structure.is_after_products(calls[row.path], operand.node):
            head_input = row
    head_input = replace(head_input, path=prefix + head_input.path)
    if head_input.layout == "tokens":
        # the code between a layer and the head may take some of its tokens
        module = {"": net.get_submodule(head_input.path)}
        layout = token_layouts(inner, few, module).get("")
        head_input = replace(head_input, layout=layout or "tokens")
    blocks, last = structure.stages(operand.node)
    early = tuple(layer(block, inside=last is None) for block in blocks)
    return AutoLayers(head_input, early or (head_input,), last and layer(last, inside=False))


def _head_input(call: Call, operand: Optional[Traced], batch: int) -> Layer:
    """The layer of the head's input; `operand` is None unless the module returns it."""
    output = call.outputs[0]
    if operand is not None and operand.shape == (batch, math.prod(output.shape) // batch):
        return Layer(call.path, call.path, "flat")
    return Layer(call.path, call.path, layout_of(output))


def _nothing_found(net: nn.Module, why: str, calls: Iterable[Call]) -> ProbeError:
    shown = [f"{call.path} {list(call.outputs[0].shape)}" for call in calls if call.readable][:24]
    example = shown[0].split()[0] if shown else "layer3"
    return ProbeError(
        f"no layers could be chosen in {type(net).__name__} by running it: {why}. Name layers by "
        f"module path, e.g. `layers=['{example}']`. Modules that return one tensor: "
        f"{', '.join(shown) or 'none'}."
    )


def with_layouts(net: nn.Module, x: Any, layers: Mapping[str, Layer]) -> Optional[dict[str, Layer]]:
    """Add layouts to layers that have none and return tokens `[batch, tokens, width]`.

    Args:
        net: the network.
        x: a batch for it; three samples are used.
        layers: by name.

    Returns:
        The layers; None if all sequences of the batch have a single token, which is ambiguous.
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
    """Find the layouts of modules that return tokens, by name; None where it is ambiguous.

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
                # different weights, so that gradients do not cancel
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
    """The layout, given which tokens the logits read, bool `[batch, tokens]`; None if unclear."""
    if mask is None or mask.shape != read.shape:
        mask = torch.ones_like(read)
    read, mask = read.cpu(), mask.cpu()
    longer = mask.sum(dim=1) > 1
    if not longer.any():
        return None
    read, mask = (read & mask)[longer], mask[longer]
    positions = torch.arange(read.shape[1])
    last = (mask * positions).amax(dim=1, keepdim=True)
    if bool((read == (positions == last)).all()):
        return "last_token"
    # in short sequences, two tokens may be all there are
    classes = _CLASS_TOKENS if int(mask.sum(dim=1).max()) > _CLASS_TOKENS + 1 else 1
    is_class = bool(read[:, 0].all()) and not bool(read[:, classes:].any())
    return "class_token" if is_class else "tokens"
