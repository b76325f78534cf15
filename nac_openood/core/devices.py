"""What depends on where a tensor is: its precision, and where those it is used with must be."""

from __future__ import annotations

import torch
from torch import Tensor


def double(tensor: Tensor) -> Tensor:
    """`tensor` in float64, on the CPU if its device has no float64 (Apple's MPS)."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).to(torch.float64)


class Placed:
    """Tensors that are moved once, not again for every batch, which would stall a GPU.

    Threads can share one, also with different devices.

    Args:
        tensors: any number, all on one device.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors = tensors

    def on(self, device: torch.device) -> tuple[Tensor, ...]:
        """The tensors on a device, where they stay until they are asked for on another."""
        tensors = self._tensors
        if tensors[0].device != device:
            tensors = self._tensors = tuple(tensor.to(device) for tensor in tensors)
        return tensors
