"""Which tokens of a layer's output the logits depend on: all, the class token, or the last one.

A ViT's head reads the class token of the last norm, GPT-2's the last token that is no padding, and
others average. Whatever the code in between does, a token that is read is one to which a gradient
of the logits flows. So layers whose layout nobody named are watched once, on a few samples.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any, Mapping, Optional, Sequence

import torch
from torch import Tensor, nn

from nac_openood.network.architectures import Layer
from nac_openood.network.calling import prepare, returned_logits
from nac_openood.network.hooks import hooked
from nac_openood.network.inputs import Inputs, call, mapped, rows, sample_count, token_mask
from nac_openood.network.random_state import kept_random_state
from nac_openood.network.replica import unwrap

#: How many samples are looked at.
_FEW = 3
#: A class token and, in distilled networks, a second one beside it.
_CLASS_TOKENS = 2


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
    found = token_layouts(inner, rows(prepare(inner, x), slice(_FEW)), unknown)
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

    watched = hooked(net, on_output=[(m, partial(observe, name)) for name, m in modules.items()])
    gradients: Sequence[Optional[Tensor]] = ()
    with kept_random_state(), torch.inference_mode(False), torch.enable_grad():
        try:
            logits = returned_logits(call(watched, mapped(x, torch.clone)))
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
