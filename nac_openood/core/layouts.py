"""Pool a module's output to one number per neuron: `[batch, ...] -> [batch, neurons]`.

Activations and gradients go through the same function, before they are multiplied. Positions are
summed, not averaged: the published steepness values assume sums. Of padded sequences, only the
tokens that a mask keeps count.
"""

from __future__ import annotations

from functools import partial
from typing import Callable, Mapping, Optional

import torch
from torch import Tensor

from nac_openood.errors import ProbeError

Pool = Callable[[Tensor], Tensor]


def _sum(tensor: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Sum in at least float32: half precision would lose the small gradients."""
    wide = tensor.dtype if tensor.dtype == torch.float64 else torch.float32
    return tensor.sum(dim=dims, dtype=wide)


def flat(tensor: Tensor) -> Tensor:
    """`[B, N]`, also `[B, N, 1, 1]` and the like."""
    return _sum(tensor.flatten(1).unsqueeze(-1), (-1,))


def maps(tensor: Tensor) -> Tensor:
    """Feature maps `[B, C, H, W]` (or with one or three spatial dimensions)."""
    return _sum(tensor, tuple(range(2, tensor.ndim)))


def maps_last(tensor: Tensor) -> Tensor:
    """Channels-last maps `[B, H, W, C]`, as Swin makes them."""
    return _sum(tensor, tuple(range(1, tensor.ndim - 1)))


def tokens(tensor: Tensor) -> Tensor:
    """Tokens `[B, T, D]`."""
    return _sum(tensor, (1,))


def class_token(tensor: Tensor) -> Tensor:
    """Tokens `[B, T, D]` of which only the first is used by the head."""
    return flat(tensor[:, 0])


def last_token(tensor: Tensor) -> Tensor:
    """Tokens `[B, T, D]` of which only the last is used by the head, as in GPT-2."""
    return flat(tensor[:, -1])


LAYOUTS: Mapping[str, Pool] = {
    "flat": flat,
    "maps": maps,
    "maps_last": maps_last,
    "tokens": tokens,
    "class_token": class_token,
    "last_token": last_token,
}
_DIMS = {
    "maps": (3, 4, 5),
    "maps_last": (3, 4, 5),
    "tokens": (3,),
    "class_token": (3,),
    "last_token": (3,),
}
_BY_DIMS = {2: "flat", 3: "tokens", 4: "maps", 5: "maps"}


def pooling_for(
    name: Optional[str],
    shape: torch.Size,
    layer: str,
    *,
    mean: bool = False,
    mask: Optional[Tensor] = None,
) -> Pool:
    """The function that pools a layer's output.

    Args:
        name: one of `LAYOUTS`; None chooses by the number of dimensions.
        shape: of the output.
        layer: its name, for errors.
        mean: whether to average over positions instead of summing.
        mask: bool `[B, T]`, False for padding, which tokens of as many positions are pooled under.
    """
    chosen = name or _BY_DIMS.get(len(shape))
    if chosen is None:
        raise ProbeError(
            f"layer '{layer}' outputs a tensor of shape {list(shape)}: expected [batch, neurons], "
            "[batch, tokens, neurons] or [batch, channels, height, width]. Choose another module, "
            f"or name its layout: LayerConfig(layout=...), one of {sorted(LAYOUTS)}."
        )
    if chosen in _DIMS and len(shape) not in _DIMS[chosen]:
        raise ProbeError(
            f"layer '{layer}' has layout '{chosen}', which is for outputs of {_DIMS[chosen]} "
            f"dimensions, but outputs shape {list(shape)}. Set LayerConfig(layout=...) to one of "
            f"{sorted(LAYOUTS)}, or to None to choose by the number of dimensions."
        )
    if mask is not None and mask.shape == shape[:2]:
        if chosen == "tokens":
            return partial(_kept_tokens, mask, mean)
        if chosen == "last_token":
            return partial(_last_kept, mask)
    return partial(_averaged, chosen) if mean else LAYOUTS[chosen]


def _kept_tokens(mask: Tensor, mean: bool, tensor: Tensor) -> Tensor:
    mask = mask.to(tensor.device)
    # filled, not multiplied: NaN in padding must not count either
    total = tokens(tensor.masked_fill(~mask.unsqueeze(-1), 0))
    return total / mask.sum(dim=1, keepdim=True).clamp(min=1) if mean else total


def _last_kept(mask: Tensor, tensor: Tensor) -> Tensor:
    places = torch.arange(mask.shape[1], device=mask.device)
    last = (mask * places).argmax(dim=1).to(tensor.device)
    return flat(tensor[torch.arange(len(tensor), device=tensor.device), last])


def _averaged(name: str, tensor: Tensor) -> Tensor:
    total = LAYOUTS[name](tensor)
    if name in ("class_token", "last_token"):
        return total
    positions = tensor[0].numel() // max(1, total.shape[1])
    return total / positions if positions > 1 else total
