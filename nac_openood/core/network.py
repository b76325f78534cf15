"""How to call somebody's network: what is inside its wrappers, what it takes, what it returns."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ContextManager, Mapping

import torch
from torch import Tensor, nn

from nac_openood.core.undisturbed import undisturbed
from nac_openood.errors import ProbeError


def unwrap(net: nn.Module) -> nn.Module:
    """The network inside DataParallel, DDP and torch.compile, which compute what it computes."""
    while True:
        if isinstance(net, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            net = net.module
            continue
        inner = getattr(net, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return net
        net = inner


def eager(net: nn.Module) -> ContextManager[Any]:
    """Run compiled parts eagerly: compiled code was traced without our hooks and skips them."""
    compiled = any(
        getattr(m, "_compiled_call_impl", None) is not None or hasattr(m, "_orig_mod")
        for m in net.modules()
    )
    if compiled and hasattr(torch.compiler, "set_stance"):
        stance: ContextManager[Any] = torch.compiler.set_stance("force_eager")
        return stance
    return nullcontext()


def prepare(net: nn.Module, x: Any) -> Tensor:
    """The batch as `net` takes it: a tensor on its device, in its precision."""
    if not isinstance(x, Tensor):
        raise ProbeError(f"expected a batch as a torch.Tensor, got {type(x).__name__}.")
    if x.ndim == 0 or x.shape[0] == 0:
        raise ProbeError(f"expected a batch of at least one sample, got shape {list(x.shape)}.")
    weights = next((p for p in net.parameters() if p.is_floating_point()), None)
    if weights is not None:
        if weights.is_inference():
            raise ProbeError(
                "the network's parameters were made inside torch.inference_mode(), where no "
                "gradient can ever be computed. Build or load the network outside of it."
            )
        dtype = weights.dtype if x.is_floating_point() else x.dtype
        x = x.to(weights.device, dtype, non_blocking=True)
    if x.is_inference():
        x = x.clone()
    return x


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
    """A plain forward pass: the logits `[batch, classes]`, as undisturbed as `read`."""
    net = unwrap(net)
    with undisturbed(net), torch.no_grad():
        x = prepare(net, x)
        return logits_of(net(x), x)
