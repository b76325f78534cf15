"""Tell networks apart: counts fitted on one network mean nothing for another."""

from __future__ import annotations

import hashlib
from typing import Mapping

import torch
from torch import nn

from nac_openood.network.replica import unwrap


def fingerprint(net: nn.Module) -> dict[str, str]:
    """Hashes of the `structure` (names, shapes, precision) and of the `weights` themselves."""
    structure, weights = hashlib.sha256(), hashlib.sha256()
    for name, tensor in sorted(unwrap(net).state_dict().items()):
        if not isinstance(tensor, torch.Tensor):
            continue  # a module may keep other extra state
        name = name.replace("_orig_mod.", "")
        structure.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        weights.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return {"structure": structure.hexdigest(), "weights": weights.hexdigest()}


def difference(saved: Mapping[str, str], net: nn.Module) -> str:
    """How `net` differs from the saved fingerprint, in words; "" if it does not."""
    now = fingerprint(net)
    if now["structure"] != saved["structure"]:
        return "its parameters have other names, shapes or precision (another architecture)"
    if now["weights"] != saved["weights"]:
        return "it has the same architecture but other weights (another checkpoint)"
    return ""
