"""From readings to neuron states: `(activation, gradient, steepness) -> state in [0, 1]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Mapping, Optional

import torch
from torch import Tensor


@dataclass(frozen=True)
class State:
    """A form of the neuron state.

    Args:
        squashed: what the sigmoid is taken of, `(activation, gradient) -> [batch, neurons]`.
        uses_gradient: whether it looks at the gradient, which costs a backward pass.
    """

    squashed: Callable[[Tensor, Optional[Tensor]], Tensor]
    uses_gradient: bool

    def __call__(self, activation: Tensor, gradient: Optional[Tensor], steepness: float) -> Tensor:
        """States `[batch, neurons]`."""
        return sigmoid(steepness * self.squashed(activation, gradient))


#: The sigmoid of this is 0.95: where the usual size of a state should land.
USUAL = 2.94


def sigmoid(x: Tensor) -> Tensor:
    """The sigmoid, to the same bits on every device.

    `torch.sigmoid` rounds differently on CPUs and GPUs, and even inside one tensor, so a state near
    an edge would be counted in another bin. Here every step is correctly rounded: the exponential
    by way of double precision, sum and quotient by IEEE 754.
    """
    if x.dtype != torch.float32 or x.device.type == "mps":
        return torch.sigmoid(x)
    return 1 / (-x).double().exp_().float().add_(1)


def _product(activation: Tensor, gradient: Optional[Tensor]) -> Tensor:
    assert gradient is not None
    return activation * gradient


def _gradient(activation: Tensor, gradient: Optional[Tensor]) -> Tensor:
    assert gradient is not None
    return gradient


#: The paper's state, an activation weighted by its influence on the decision, and its ablations.
STATES: Mapping[str, State] = {
    "output*gradient": State(_product, uses_gradient=True),
    "output": State(lambda activation, gradient: activation, uses_gradient=False),
    "gradient": State(_gradient, uses_gradient=True),
}
