"""How to call somebody's network: what it takes and what it returns."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, Mapping, Optional

import torch
from torch import Tensor, nn

from nac_openood.errors import NACError, ProbeError
from nac_openood.network.hooks import run_without_grad
from nac_openood.network.inputs import (
    Inputs,
    accepted,
    as_inputs,
    mapped,
    rows,
    sample_count,
    shapes,
    tensors_in,
)
from nac_openood.network.replica import unwrap

_NO_BATCH = "Expected a batch: a single image needs a leading dimension, x[None]."


def prepare(net: nn.Module, x: Any) -> Any:
    """The batch as `net` takes it: tensors on its device, floats in its precision.

    Args:
        net: the network, without wrappers.
        x: a tensor, or several in a tuple, list, dict or Hugging Face encoding.
    """
    if not isinstance(x, Tensor):
        x = accepted(net, as_inputs(x))
    if not sample_count(x):
        raise ProbeError(f"expected a batch of at least one sample, got {shapes(x)}.")
    weights = next((p for p in net.parameters() if p.is_floating_point()), None)

    def move(tensor: Tensor) -> Tensor:
        if weights is not None:
            dtype = weights.dtype if tensor.is_floating_point() else tensor.dtype
            tensor = tensor.to(weights.device, dtype, non_blocking=True)
        return tensor.clone() if tensor.is_inference() else tensor

    return mapped(x, move)


def logits_of(output: Any, x: Inputs) -> Tensor:
    """The logits `[batch, classes]` in what a network returned.

    That is a tensor; a dict or an object with `logits`, such as Hugging Face's outputs; or a tuple
    that begins with one of these. A single logit `z` per sample, `[batch]` or `[batch, 1]`, as
    classifiers with a sigmoid have it, counts as the two logits `[0, z]`: `softmax([0, z])[1]` is
    `sigmoid(z)`.

    Args:
        output: what the network returned.
        x: what it was given.
    """
    found = returned_logits(output)
    single = found is not None and (found.ndim == 1 or found.shape[1:] == (1,))
    if single and found is not None:
        found = torch.stack([torch.zeros_like(found), found], dim=1).flatten(1)
    if found is None or found.ndim != 2 or found.shape[1] < 2:
        raise ProbeError(
            "expected logits of shape [batch, classes] from the network, or [batch] for two "
            f"classes; got {_said(output)}. Wrap a network that returns something else."
        )
    unbatched = single and isinstance(x, Tensor) and x.ndim == 1 and x.is_floating_point()
    if unbatched or found.shape[0] != sample_count(x):
        raise ProbeError(
            f"the network returned logits for {found.shape[0]} samples, given input of "
            f"{shapes(x)}. {_NO_BATCH}"
        )
    return found


def returned_logits(output: Any) -> Optional[Tensor]:
    """The tensor of logits that a network returned, as it is; None if there is none."""
    found = output[0] if isinstance(output, (tuple, list)) and output else output
    found = found.get("logits") if isinstance(found, Mapping) else getattr(found, "logits", found)
    return found if isinstance(found, Tensor) else None


def _said(output: Any) -> str:
    """What a network returned, for errors."""
    if isinstance(output, Tensor):
        return str(list(output.shape))
    kind = type(output).__name__
    if isinstance(output, Mapping):
        return f"{kind} of {', '.join(f'{k}: {_said(v)}' for k, v in output.items())}"
    if isinstance(output, (tuple, list)):
        return f"{kind} of {', '.join(map(_said, output))}"
    return f"{kind} of {_said(output.logits)}" if hasattr(output, "logits") else kind


def classify(net: nn.Module, x: Any) -> Tensor:
    """The logits `[batch, classes]` of a batch, in evaluation mode and without gradients."""
    with explained(x):
        x = prepare(unwrap(net), x)
        return logits_of(run_without_grad(net, x), x)


def count_classes(net: nn.Module, x: Any) -> int:
    """How many classes a network tells apart, seen by running it on the first sample of a batch."""
    with explained(x):
        few = rows(prepare(unwrap(net), x), slice(1))
        return logits_of(run_without_grad(net, few), few).shape[1]


@contextmanager
def explained(x: Any) -> Iterator[None]:
    """Say what is wrong with a batch if the network fails on it, where that is easy to see.

    Some networks do take what looks wrong, so it is left to them to refuse it.
    """
    try:
        yield
    except NACError:
        raise
    except Exception as error:
        hint = _slip(x)
        if hint is None or isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
            raise
        told = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ProbeError(f"the network failed on this batch: {told} {hint}") from error


def _slip(x: Any) -> Optional[str]:
    tensors = tensors_in(x)
    alike = len({tensor.shape for tensor in tensors}) == 1
    if isinstance(x, (tuple, list)) and len(tensors) > 1 and alike:
        return (
            f"The batch has {shapes(tuple(x))}. A tuple or list holds the inputs of a network with "
            "several, `net(*x)`: samples of one input are joined with torch.stack(x)."
        )
    for tensor in tensors:
        what = f"The batch has {shapes(x)} and dtype {tensor.dtype}."
        if tensor.ndim > 2 and not tensor.is_floating_point():
            return (
                f"{what} Networks take images as floating-point numbers: pass x.float() / 255, "
                "normalized as in training."
            )
        if tensor.ndim == 3 and tensor.shape[0] in (1, 3, 4):
            return f"{what} {_NO_BATCH}"
    return None
