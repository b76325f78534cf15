"""From readings to neuron states: `(activation, gradient, steepness) -> state in [0, 1]`."""

from __future__ import annotations

from typing import Callable, Mapping

import torch
from torch import Tensor

State = Callable[[Tensor, Tensor, float], Tensor]


def output_times_gradient(activation: Tensor, gradient: Tensor, steepness: float) -> Tensor:
    """The paper's state: how active a neuron is, weighed by its say in the decision."""
    return torch.sigmoid(steepness * (activation * gradient))


def output(activation: Tensor, gradient: Tensor, steepness: float) -> Tensor:
    """Ablation: the activation alone."""
    return torch.sigmoid(steepness * activation)


def gradient(activation: Tensor, gradient: Tensor, steepness: float) -> Tensor:
    """Ablation: the gradient alone."""
    return torch.sigmoid(steepness * gradient)


STATES: Mapping[str, State] = {
    "output*gradient": output_times_gradient,
    "output": output,
    "gradient": gradient,
}
