"""Scores of other methods, as functions of logits, penultimate features and the head's weights.

Higher means more in-distribution; float64 `[batch]`, in the precision of the features where they
are compared with many others. `core.plus` has GEN.
"""

from __future__ import annotations

from typing import Union

import torch
from torch import Tensor
from torch.nn import functional as F

from nac_openood.core.reading import double

#: How many samples are compared with all fitting samples at a time.
_AT_ONCE = 1000


def msp(logits: Tensor) -> Tensor:
    """The largest probability (Hendrycks & Gimpel, ICLR 2017)."""
    return double(logits).softmax(dim=1).amax(dim=1)


def energy(logits: Tensor) -> Tensor:
    """The negative free energy (Liu et al., NeurIPS 2020)."""
    return double(logits).logsumexp(dim=1)


def boundary_gaps(weight: Tensor) -> Tensor:
    """Distances between the weights of the head's classes, `[classes, classes]`, for `fdbd`."""
    gaps = torch.cdist(weight, weight, compute_mode="donot_use_mm_for_euclid_dist")
    return gaps.fill_diagonal_(1)


def fdbd(features: Tensor, logits: Tensor, gaps: Tensor, origin: Union[Tensor, float]) -> Tensor:
    """FDBD (Liu & Qin, ICML 2024): distance to the decision boundaries, relative to `origin`.

    Args:
        features: `[batch, D]`.
        logits: `[batch, classes]`.
        gaps: from `boundary_gaps`.
        origin: the mean of training features `[D]`, or 0.
    """
    best, predicted = logits.max(dim=1)
    distance = ((best[:, None] - logits) / gaps[predicted]).sum(dim=1)
    return (distance / (features - origin).norm(dim=1)).double()


def nci(features: Tensor, logits: Tensor, weight: Tensor, mean: Tensor, alpha: float) -> Tensor:
    """NCI (Liu & Qin, CVPR 2025): projection on the weights of the predicted class.

    Args:
        features: `[batch, D]`.
        logits: `[batch, classes]`.
        weight: weights of the head, `[classes, D]`.
        mean: the mean of training features `[D]`.
        alpha: the weight of the features' size.
    """
    centered = F.normalize(features - mean, dim=1)
    projection = (weight[logits.argmax(dim=1)] * centered).sum(dim=1)
    return (projection + alpha * features.norm(p=1, dim=1)).double()


def knn(features: Tensor, bank: Tensor, k: int) -> Tensor:
    """Similarity to the k-th nearest sample of a bank of unit length (Sun et al., ICML 2022)."""
    parts = F.normalize(features, dim=1).split(_AT_ONCE)
    return torch.cat([(part @ bank.T).topk(k, dim=1).values[:, -1] for part in parts]).double()
