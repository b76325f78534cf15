"""The result of a pass over the network: logits, and one number per neuron of each layer.

Activations and gradients `[batch, ...]` are pooled to `[batch, neurons]` by the same function,
before they are multiplied. Positions are summed, not averaged: the published steepness values
assume sums. Of padded sequences, only the tokens that a mask keeps count.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Callable, Iterator, Mapping, NamedTuple, Optional

import torch
from torch import Tensor

from nac_openood.errors import NACError, ProbeError


class Reading(NamedTuple):
    """Activations and gradients of a layer for a batch: detached tensors `[batch, neurons]`.

    `gradient` is None if the pass did not compute it.
    """

    activation: Tensor
    gradient: Optional[Tensor] = None


class ByLayer(Mapping[str, Reading]):
    """Base of classes that map layer names to readings."""

    by_layer: Mapping[str, Reading]

    def __getitem__(self, name: str) -> Reading:
        return self.by_layer[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_layer)

    def __len__(self) -> int:
        return len(self.by_layer)


@dataclass(frozen=True)
class Probed(ByLayer):
    """The result of a pass: a mapping of layer name to `Reading`, with the logits.

    Args:
        logits: `[batch, classes]`.
        by_layer: readings by layer name.
    """

    logits: Tensor
    by_layer: Mapping[str, Reading]


def logits_in(readings: Mapping[str, Reading]) -> Tensor:
    """The logits `[batch, classes]` that came with readings.

    Raises:
        NACError: there are none, e.g. in a dict, or in a file of an old version.
    """
    logits: Optional[Tensor] = getattr(readings, "logits", None)
    if logits is None:
        raise NACError(
            "these readings have no logits, which this rule needs. Read the network again with "
            "NACDetector.read_loader."
        )
    return logits


def reading_in(readings: Mapping[str, Reading], name: str) -> Reading:
    """The reading of a layer, or an error that says which layers there are."""
    if name not in readings:
        raise NACError(
            f"readings of layer '{name}' are missing; got {sorted(readings)}. "
            "Collect them with the layers that are fitted and scored."
        )
    return readings[name]


def not_finite(*readings: Reading) -> Tensor:
    """Which samples have NaN or Inf readings, bool `[batch]` on the device of the first reading."""
    broken = ~_finite(readings[0])
    for reading in readings[1:]:
        broken = broken | ~_finite(reading).to(broken.device)
    return broken


def _finite(reading: Reading) -> Tensor:
    finite = reading.activation.isfinite()
    if reading.gradient is not None:
        finite = finite & reading.gradient.isfinite()
    return finite.all(dim=1)


def broken_error(count: int, of: str, layer: Optional[str] = None, *, then: str = "") -> NACError:
    """The error for samples with NaN or Inf readings.

    Args:
        count: number of these samples.
        of: all samples, e.g. "1000 fitting samples".
        layer: the layer; None if it is unknown.
        then: what happened to them.
    """
    where = "" if layer is None else f"layer '{layer}': "
    return NACError(
        f"{where}{count} of {of} have NaN or Inf readings{then}. Check the inputs (normalization, "
        "corrupt images) and the precision (float16 overflows where bfloat16 does not)."
    )


# -- pooling --------------------------------------------------------------------------------

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
        shape: shape of the output.
        layer: name of the layer, for errors.
        mean: whether to average over positions instead of summing.
        mask: bool `[B, T]`, False for padding; used for outputs with as many tokens.
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
    positions = torch.arange(mask.shape[1], device=mask.device)
    last = (mask * positions).argmax(dim=1).to(tensor.device)
    return flat(tensor[torch.arange(len(tensor), device=tensor.device), last])


def _averaged(name: str, tensor: Tensor) -> Tensor:
    total = LAYOUTS[name](tensor)
    if name in ("class_token", "last_token"):
        return total
    positions = tensor[0].numel() // max(1, total.shape[1])
    return total / positions if positions > 1 else total
