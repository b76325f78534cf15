"""The linear layer at the end of a classifier, and the features that go into it.

Found by running the network: whatever its layers are called and whatever wraps it, the head is
the linear layer whose output is the logits.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor, nn

from nac_openood.errors import NACError
from nac_openood.network.inputs import logits_of, prepare
from nac_openood.network.replica import run_without_grad, unwrap


class Featured(NamedTuple):
    """A batch's logits `[batch, classes]`, the input of the head, `[batch, D]`, and the head."""

    logits: Tensor
    features: Tensor
    path: str
    head: nn.Linear


class Head(nn.Module):
    """A classifier's linear layer, in place of the network for methods that work on features.

    It has the interface of OpenOOD's networks. The layer is a frozen copy, so that nothing done to
    it reaches the network. A layer with a single output gets a row of zeros before it, which makes
    it a layer of two classes.

    Args:
        layer: from `head_of`.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.fc = copy.deepcopy(layer)
        if layer.out_features == 1:
            self.fc.out_features = 2
            for name, row in layer.named_parameters():
                rows = torch.cat([torch.zeros_like(row), row.detach()])
                setattr(self.fc, name, nn.Parameter(rows))
        self.requires_grad_(False)
        self.eval()

    def forward(
        self, x: Tensor, return_feature: bool = False, return_feature_list: bool = False
    ) -> Any:
        """Logits `[batch, classes]` of features `[batch, D]`, alone or with (a list of) them."""
        logits = self.fc(x.to(self.fc.weight.dtype))
        if return_feature:
            return logits, x.clone()  # OpenOOD's ASH overwrites it
        return (logits, [x.clone()]) if return_feature_list else logits

    def forward_threshold(self, x: Tensor, threshold: float) -> Tensor:
        """Logits of features clipped at `threshold`."""
        return self(x.clip(max=threshold))

    def get_fc_layer(self) -> nn.Linear:
        """The layer."""
        return self.fc

    def get_fc(self) -> tuple[np.ndarray, np.ndarray]:
        """Its weight `[classes, D]` and bias `[classes]`, zeros where it has none."""
        weight = self.fc.weight.detach().float().cpu()
        bias = weight.new_zeros(len(weight)) if self.fc.bias is None else self.fc.bias.detach()
        return weight.numpy(), bias.float().cpu().numpy()


def head_of(net: nn.Module, sample: Any) -> tuple[str, nn.Linear]:
    """The linear layer whose output is the logits, and its dotted path.

    Args:
        net: a classifier; the path is relative to the network inside DataParallel, torch.compile.
        sample: a batch for it, of one image or more.

    Raises:
        NACError: the logits are not the output of a linear layer.
    """
    return with_features(net, sample)[2:]


def with_features(net: nn.Module, x: Any, head: Optional[nn.Linear] = None) -> Featured:
    """One forward pass in evaluation mode: the logits and the input of the head.

    Args:
        net: a classifier.
        x: a batch for it.
        head: from `head_of`; None looks for it in this pass.
    """
    inner = unwrap(net)
    linear = {
        layer: path
        for path, layer in inner.named_modules()
        if isinstance(layer, nn.Linear) and (head is None or layer is head)
    }
    calls: list[tuple[Any, Tensor, Tensor]] = []

    def observe(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        # not tokens and maps, which are no logits and would take memory
        if inputs and isinstance(inputs[0], Tensor) and inputs[0].ndim == 2:
            # copies: an operation in place may rewrite the originals
            calls.append((layer, inputs[0].clone(), output.clone()))

    x = prepare(inner, x)
    on_output = [(layer, observe) for layer in linear]
    logits = logits_of(run_without_grad(inner, x, on_output=on_output), x)
    for layer, features, output in reversed(calls):
        # `logits_of` turns a single logit into two
        same = logits[:, 1:] if output.shape[1] == 1 else logits
        if output.shape == same.shape and torch.allclose(output, same, 0, 0, equal_nan=True):
            return Featured(logits, features, linear[layer], layer)
    alike = [linear[layer] for layer, _, output in calls if output.shape == logits.shape]
    raise NACError(
        f"expected {type(inner).__name__} to end in one nn.Linear whose output is the logits "
        f"{list(logits.shape)}. Linear layers with outputs of that shape: "
        f"{', '.join(alike) or 'none'}. Methods that work on penultimate features need such a "
        "head: leave them out, or wrap the network so that it returns that layer's output."
    )
