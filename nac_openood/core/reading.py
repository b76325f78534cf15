"""The result of a pass over the network: logits, and one number per neuron of each layer.

Activations and gradients `[batch, ...]` are pooled to `[batch, neurons]` by the same function,
before they are multiplied. Positions are summed, not averaged: the published steepness values
assume sums. Of padded sequences, only the tokens that a mask keeps count.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from typing import Callable, Iterator, Mapping, NamedTuple, Optional

import torch
from torch import Tensor, nn

from nac_openood.errors import NACError, ProbeError


def double(tensor: Tensor) -> Tensor:
    """`tensor` in float64, on the CPU if its device has no float64 (Apple's MPS)."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).to(torch.float64)


class DeviceTensors:
    """Tensors that are moved to a device once; moving them for every batch would stall a GPU.

    Threads can share an instance, even if they use different devices.

    Args:
        tensors: any number, all on one device.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors = tensors

    def on(self, device: torch.device) -> tuple[Tensor, ...]:
        """The tensors on a device, where they stay until they are needed on another."""
        tensors = self._tensors
        if tensors[0].device != device:
            tensors = self._tensors = tuple(tensor.to(device) for tensor in tensors)
        return tensors


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
class BatchReadings(ByLayer):
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
    if not isinstance(readings, Mapping):
        raise NACError(f"expected readings by layer name, got {type(readings).__name__}.")
    if name not in readings:
        raise NACError(
            f"readings of layer '{name}' are missing; got {sorted(readings)}. "
            "Collect them with the layers that are fitted and scored."
        )
    found = readings[name]
    if not isinstance(found, tuple) or not isinstance(found[0], Tensor):
        raise NACError(f"layer '{name}': expected (activation, gradient) as tensors.")
    return found


def not_finite(*readings: Reading) -> Tensor:
    """Which samples have NaN or Inf readings, bool `[batch]` on the device of the first reading."""
    tensors = [tensor for reading in readings for tensor in reading if tensor is not None]
    broken = [~tensor.isfinite().all(dim=1) for tensor in tensors]
    return reduce(lambda one, other: one | other.to(one.device), broken)


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


def _flat(tensor: Tensor) -> Tensor:
    return _sum(tensor.flatten(1).unsqueeze(-1), (-1,))


#: How to pool a layer's output, by its layout. With a class token or a last token, the head uses
#: only that one.
LAYOUTS: Mapping[str, Pool] = {
    "flat": _flat,  # [B, N], also [B, N, 1, 1] and the like
    "maps": lambda x: _sum(x, tuple(range(2, x.ndim))),  # [B, C, H, W], [B, C, L] etc.
    "maps_last": lambda x: _sum(x, tuple(range(1, x.ndim - 1))),  # [B, H, W, C], as in Swin
    "tokens": lambda x: _sum(x, (1,)),  # [B, T, D]
    "class_token": lambda x: _flat(x[:, 0]),
    "last_token": lambda x: _flat(x[:, -1]),  # as in GPT-2
}
#: A class token and, in distilled networks, a second one beside it.
CLS_TOKENS = 2
#: How many dimensions an output of each layout may have; layouts of tokens always have 3.
_DIMS = {"flat": tuple(range(1, 9)), "maps": (3, 4, 5), "maps_last": (3, 4, 5)}
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
        mask: bool `[B, T]`, False for padding; used for outputs with as many tokens, or with class
            tokens in front of them.
    """
    chosen = name or _BY_DIMS.get(len(shape))
    if chosen is None or len(shape) not in _DIMS.get(chosen, (3,)):
        raise ProbeError(
            f"layer '{layer}' outputs a tensor of shape {list(shape)}, which does not fit "
            f"layout={name!r}. Choose another module, or set LayerConfig(layout=...) to one of "
            f"{sorted(LAYOUTS)}; None chooses by the number of dimensions, 2 to 5."
        )
    mask = mask_for(mask, shape)
    if mask is not None:
        if chosen == "tokens":
            return partial(_kept_tokens, mask, mean)
        if chosen == "last_token":
            return partial(_last_kept, mask)
    return partial(_averaged, chosen) if mean else LAYOUTS[chosen]


def mask_for(mask: Optional[Tensor], shape: torch.Size) -> Optional[Tensor]:
    """The mask for a layer's output `[B, T, ...]`, True for class tokens; None if it does not fit.

    Networks put class tokens in front of the tokens that the mask is for.
    """
    if mask is None or len(shape) < 2 or mask.shape[0] != shape[0]:
        return None
    added = shape[1] - mask.shape[1]
    return nn.functional.pad(mask, (added, 0), value=True) if 0 <= added <= CLS_TOKENS else None


def _kept_tokens(mask: Tensor, mean: bool, tensor: Tensor) -> Tensor:
    mask = mask.to(tensor.device)
    # filled, not multiplied: NaN in padding must not count either
    total = LAYOUTS["tokens"](tensor.masked_fill(~mask.unsqueeze(-1), 0))
    return total / mask.sum(dim=1, keepdim=True).clamp(min=1) if mean else total


def _last_kept(mask: Tensor, tensor: Tensor) -> Tensor:
    positions = torch.arange(mask.shape[1], device=mask.device)
    last = (mask * positions).argmax(dim=1).to(tensor.device)
    return _flat(tensor[torch.arange(len(tensor), device=tensor.device), last])


def _averaged(name: str, tensor: Tensor) -> Tensor:
    total = LAYOUTS[name](tensor)
    if name in ("class_token", "last_token"):
        return total
    positions = tensor[0].numel() // max(1, total.shape[1])
    return total / positions if positions > 1 else total
