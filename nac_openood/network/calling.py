"""How to call somebody's network: what it takes and what it returns."""

from __future__ import annotations

from typing import Any, Mapping

from torch import Tensor, nn

from nac_openood.errors import ProbeError
from nac_openood.network.hooks import run_without_grad
from nac_openood.network.replica import unwrap


def prepare(net: nn.Module, x: Any) -> Tensor:
    """The batch as `net` takes it: a tensor on its device, in its precision."""
    if not isinstance(x, Tensor):
        raise ProbeError(f"expected a batch as a torch.Tensor, got {type(x).__name__}.")
    if x.ndim == 0 or x.shape[0] == 0:
        raise ProbeError(f"expected a batch of at least one sample, got shape {list(x.shape)}.")
    weights = next((p for p in net.parameters() if p.is_floating_point()), None)
    if weights is not None:
        dtype = weights.dtype if x.is_floating_point() else x.dtype
        x = x.to(weights.device, dtype, non_blocking=True)
    return x.clone() if x.is_inference() else x


def logits_of(output: Any, x: Tensor) -> Tensor:
    """The logits `[batch, classes]` in what a network returned: a tensor, `.logits`, or a tuple."""
    found = output.get("logits") if isinstance(output, Mapping) else output
    found = getattr(found, "logits", found)
    if isinstance(found, (tuple, list)) and found:
        found = found[0]
    if not isinstance(found, Tensor) or found.ndim != 2 or found.shape[1] < 2:
        what = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ProbeError(
            f"expected logits of shape [batch, classes] from the network, got {what}. NAC needs a "
            "classifier with two or more classes; wrap a network that returns something else."
        )
    if found.shape[0] != x.shape[0]:
        raise ProbeError(
            f"the network returned logits for {found.shape[0]} samples, given input of shape "
            f"{list(x.shape)}. Expected a batch: a single image needs a leading dimension, x[None]."
        )
    return found


def classify(net: nn.Module, x: Tensor) -> Tensor:
    """The logits `[batch, classes]` of a batch, in evaluation mode and without gradients."""
    x = prepare(unwrap(net), x)
    return logits_of(run_without_grad(net, x), x)
