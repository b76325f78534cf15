"""The gradient at the input of a linear head, in closed form: no graph and no backward pass.

With logits `W z + b`, the gradient of KL(uniform || softmax) with respect to `z` is `(p - u) W`. It
holds if `z` is what the head is given and the logits are what the head returns, which is seen in
every pass from the tensors themselves: they must be the same memory, not merely equal.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn

from nac_openood.network.hooks import OutputObserver, has_hooks


class _Seen(NamedTuple):
    """A tensor, and how often it had been written to when it was seen."""

    tensor: Tensor
    version: int

    @classmethod
    def now(cls, tensor: Tensor) -> _Seen:
        return cls(tensor, tensor._version)

    def is_still(self, other: Tensor) -> bool:
        """Whether `other` is this tensor or a view of all of it, with nothing written since."""
        return (
            self.tensor.data_ptr() == other.data_ptr()
            and self.tensor.numel() == other.numel()
            and self.tensor.is_contiguous()
            and other.is_contiguous()
            and other._version == self.version
        )


class HeadWatch:
    """Watches one pass for a linear head on top of one layer.

    Args:
        net: the network, without wrappers.
    """

    def __init__(self, net: nn.Module) -> None:
        self._linear = [module for module in net.modules() if _plain_linear(module)]
        self._layer: Optional[_Seen] = None
        self._head: Optional[nn.Module] = None
        self._logits: Optional[_Seen] = None

    @property
    def observers(self) -> list[tuple[nn.Module, OutputObserver]]:
        """For `nac_openood.network.hooks.run`."""
        return [(module, self._observe) for module in self._linear]

    def saw_layer(self, output: Tensor) -> None:
        """Note the output of the layer whose gradient is wanted."""
        self._layer = _Seen.now(output)

    def _observe(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self._layer is not None and inputs and self._layer.is_still(inputs[0]):
            self._head, self._logits = module, _Seen.now(output)

    def gradient(self, logits: Tensor) -> Optional[Tensor]:
        """The gradient in the shape of the layer's output; None if the layer has no such head."""
        if self._head is None or self._logits is None or not self._logits.is_still(logits):
            return None
        assert self._layer is not None  # or no head would have been seen
        weight: Any = self._head.weight
        single = logits.dtype == weight.dtype == self._layer.tensor.dtype
        if logits.ndim != 2 or not single or logits.dtype not in (torch.float32, torch.float64):
            return None
        log_p = logits.log_softmax(dim=-1)
        uniform = torch.full_like(log_p, -1 / logits.shape[1])
        # what autograd calls, so that not even the rounding differs
        by_logits = torch.ops.aten._log_softmax_backward_data(uniform, log_p, -1, log_p.dtype)
        found: Tensor = by_logits.mm(weight.detach()).reshape(self._layer.tensor.shape)
        return found


def _plain_linear(module: nn.Module) -> bool:
    """Whether a module computes `W z + b` with a weight of its own, and nothing else."""
    return (
        type(module) is nn.Linear
        and "weight" in module._parameters
        and "forward" not in vars(module)
        and not has_hooks(module)
    )
