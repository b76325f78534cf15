"""Arithmetic in double precision, on devices that have it and on those that have not."""

from __future__ import annotations

import torch
from torch import Tensor


def double(tensor: Tensor) -> Tensor:
    """`tensor` in float64, on the CPU if its device has no float64 (Apple's MPS)."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).to(torch.float64)
