"""Losses for training on several source domains: ERM, CORAL and SelfReg, as in DomainBed."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nac_openood.core.layer_config import finite_number
from nac_openood.errors import NACError


class Outputs(NamedTuple):
    """One step's minibatches of all domains, after one pass over the network.

    Args:
        logits: `[batch, classes]`.
        labels: int64 `[batch]`.
        domains: number of each sample's domain, int64 `[batch]`.
        features: input of the classifier's last linear layer `[batch, D]`; None for an algorithm
            that does not need it.
    """

    logits: Tensor
    labels: Tensor
    domains: Tensor
    features: Optional[Tensor] = None


class Algorithm(nn.Module):
    """A loss on the minibatches of all domains. Subclasses may have parameters, which are trained.

    Attributes:
        needs_features: whether it uses `Outputs.features`.
    """

    needs_features = False

    def start(self, width: int) -> None:
        """Create modules that depend on the number of features; called once before training."""

    def forward(self, outputs: Outputs) -> Tensor:
        """The loss, a scalar."""
        raise NotImplementedError


class ERM(Algorithm):
    """Empirical risk minimization: cross-entropy over the samples of all domains."""

    def forward(self, outputs: Outputs) -> Tensor:
        """The loss, a scalar."""
        return F.cross_entropy(outputs.logits, outputs.labels)


class CORAL(Algorithm):
    """Cross-entropy, and features whose mean and covariance agree between domains.

    Args:
        weight: of the second term (DomainBed's `mmd_gamma`).
    """

    needs_features = True

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = finite_number("weight", weight)

    def forward(self, outputs: Outputs) -> Tensor:
        """The loss, a scalar."""
        features = _features(outputs)
        parts = [features[outputs.domains == d] for d in outputs.domains.unique()]
        distances = [moment_distance(*pair) for pair in combinations(parts, 2)]
        loss = F.cross_entropy(outputs.logits, outputs.labels)
        return loss + self.weight * torch.stack(distances).mean() if distances else loss


class SelfReg(Algorithm):
    """Cross-entropy, and outputs that agree between samples of a class, alone and mixed.

    Args:
        feature_weight: of the terms on features, relative to those on logits.
    """

    needs_features = True

    def __init__(self, feature_weight: float = 0.3) -> None:
        super().__init__()
        self.feature_weight = finite_number("feature_weight", feature_weight)
        self.project = nn.Sequential()

    def start(self, width: int) -> None:
        """Create the projection of the features, which is trained with the network."""
        first = (nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(inplace=True))
        self.project = nn.Sequential(*first, nn.Linear(width, width), nn.BatchNorm1d(width))

    def forward(self, outputs: Outputs) -> Tensor:
        """The loss, a scalar."""
        features, logits = _features(outputs), outputs.logits
        projected = self.project(features)
        mix = float(torch.distributions.Beta(0.5, 0.5).sample())
        other, another = within_classes(outputs.labels), within_classes(outputs.labels)

        def mixed(values: Tensor) -> Tensor:
            return mix * values[other] + (1 - mix) * values[another]

        single = F.mse_loss(logits, logits[other])
        single = single + self.feature_weight * F.mse_loss(features, projected[other])
        double = F.mse_loss(logits, mixed(logits))
        double = double + self.feature_weight * F.mse_loss(features, mixed(projected))
        loss = F.cross_entropy(logits, outputs.labels)
        scale = min(float(loss.detach()), 1.0)
        return loss + scale * (mix * single + (1 - mix) * double)


def moment_distance(first: Tensor, second: Tensor) -> Tensor:
    """Mean squared difference of the means, plus that of the covariances, of features `[n, D]`."""
    mean = (first.mean(dim=0) - second.mean(dim=0)).pow(2).mean()
    return mean + (_covariance(first) - _covariance(second)).pow(2).mean()


def _covariance(features: Tensor) -> Tensor:
    if len(features) < 2:
        raise NACError(
            f"CORAL needs at least two samples of each domain in a batch, got {len(features)}. Use "
            "a larger batch size, and drop_last=True."
        )
    centered = features - features.mean(dim=0, keepdim=True)
    return centered.t() @ centered / (len(features) - 1)


def within_classes(labels: Tensor) -> Tensor:
    """For each sample the row of a random sample of its class: a permutation, int64 `[batch]`."""
    rows = torch.arange(len(labels), device=labels.device)
    for label in labels.unique():
        members = (labels == label).nonzero().squeeze(1)
        rows[members] = members[torch.randperm(len(members)).to(labels.device)]
    return rows


def _features(outputs: Outputs) -> Tensor:
    if outputs.features is None:
        raise NACError("expected `features` in the outputs: the input of the last linear layer.")
    return outputs.features
