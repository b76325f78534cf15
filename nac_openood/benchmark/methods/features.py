"""Later methods than the paper's, on features, logits and the linear head; no library is needed.

For the functions `fit_NAME` see `FunctionScorer`. Where OpenOOD has a method, the formula and the
hyperparameters are OpenOOD's.
"""

from __future__ import annotations

from typing import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nac_openood.benchmark.methods.scorer import FittedMethod, MethodInputs, ScoreFunction, in_parts
from nac_openood.core.posthoc import boundary_gaps, fdbd, nci

#: What WeiPer adds to the histograms of features and of logits.
_EPS = 0.01, 0.025


def fit_fdbd(inputs: MethodInputs) -> FittedMethod:
    """Distance to the decision boundaries, relative to that from the mean of training data."""
    weight, mean = _weight_and_mean(inputs)
    gaps = boundary_gaps(weight)
    return lambda distance_as_normalizer: (
        lambda x, logits: fdbd(x, logits, gaps, mean * distance_as_normalizer)
    )


def fit_nci(inputs: MethodInputs) -> FittedMethod:
    """Projection on the weights of the predicted class, around the mean of training data."""
    weight, mean = _weight_and_mean(inputs)
    return lambda alpha: lambda x, logits: nci(x, logits, weight, mean, alpha)


def _weight_and_mean(inputs: MethodInputs) -> tuple[Tensor, Tensor]:
    """The weights of the head, and the mean of training features."""
    device = inputs.device
    mean = inputs.collect(inputs.train)[0].mean(dim=0)
    return inputs.head[0].to(device), mean.to(device)


def fit_scale(inputs: MethodInputs) -> FittedMethod:
    """Energy of features that are scaled by the share of the largest ones in their sum."""

    def use(percentile: float) -> ScoreFunction:
        def score(features: Tensor, logits: Tensor) -> Tensor:
            n = features.shape[1]
            largest = features.topk(n - round(n * percentile / 100), dim=1).values
            ratio = features.sum(dim=1) / largest.sum(dim=1)
            return _energy(inputs, features * ratio.exp()[:, None])

        return score

    return use


def fit_vra(inputs: MethodInputs) -> FittedMethod:
    """Energy of features clipped at two percentiles of ID validation features."""
    values = inputs.collect(inputs.id_val)[0].numpy()

    def use(percentile_high: float, percentile_low: float) -> ScoreFunction:
        low, high = np.percentile(values, [percentile_low, percentile_high]).tolist()
        return lambda features, _: _energy(inputs, features.clip(low, high))

    return use


def _energy(inputs: MethodInputs, features: Tensor) -> Tensor:
    logits: Tensor = inputs.net(features)
    return logits.float().logsumexp(dim=1)


def fit_relation(inputs: MethodInputs) -> FittedMethod:
    """Sum of the similarities to training data, in features and posteriors, that exceed 0.03."""
    device = inputs.device
    values = inputs.collect(inputs.train)[0].to(device)
    posteriors = inputs.collect(inputs.train, inputs.net)[0].to(device).softmax(dim=1)
    F.normalize(values, dim=1, out=values)

    def use(pow: int) -> ScoreFunction:
        def related(features: Tensor, posterior: Tensor) -> Tensor:
            found = (features @ values.T).clamp(min=0) * (posterior @ posteriors.T)
            return torch.where(found > 0.03, found**pow, 0).sum(dim=1)

        def score(features: Tensor, logits: Tensor) -> Tensor:
            both = F.normalize(features, dim=1), logits.softmax(dim=1)
            parts = zip(*(in_parts(each, len(values)) for each in both))
            return torch.cat([related(*part) for part in parts])

        return score

    return use


def fit_nnguide(inputs: MethodInputs, K: int, alpha: float) -> FittedMethod:
    """Energy times the mean similarity to the K nearest features, weighted by their energies.

    They are among a share `alpha` of training data, evenly spaced, and at least K.
    """
    device = inputs.device
    values, _ = inputs.collect(inputs.train)
    n = min(len(values), max(K, round(alpha * len(values))))
    bank = values[torch.linspace(0, len(values) - 1, n).round().long()].to(device)
    with torch.no_grad():
        bank = F.normalize(bank, dim=1) * _energy(inputs, bank)[:, None]

    def score(features: Tensor, logits: Tensor) -> Tensor:
        nearest = (F.normalize(features, dim=1) @ bank.T).topk(min(K, n), dim=1).values
        return nearest.mean(dim=1) * logits.logsumexp(dim=1)

    return lambda: score


def fit_cfood(inputs: MethodInputs, alpha: float, k: float) -> FittedMethod:
    """The smallest size of neighborhoods of which a share `k` contain the sample, negated.

    Neighborhoods are those of reference points, a random share `alpha` of the training data; their
    sizes are shares of these points.
    """
    values = F.normalize(inputs.collect(inputs.train)[0], dim=1)
    n = max(2, int(alpha * len(values)))
    bank = values[torch.randperm(len(values))[:n]].to(inputs.device)
    grid = np.linspace(0.001, 0.1, 100), np.linspace(0.105, 0.5, 81), np.linspace(0.51, 0.99, 49)
    shares = np.concatenate(grid)
    ranks, first = np.unique((shares * n - 1).astype(int), return_index=True)
    sizes = bank.new_tensor([*shares[first], 1.0])

    def distances(x: Tensor) -> Tensor:
        return ((bank - x) ** 2).sum(dim=1)

    # the nearest point is the point itself
    radius = torch.stack([distances(point).sort().values[ranks + 1] for point in bank])

    def score(features: Tensor, logits: Tensor) -> Tensor:
        unit = F.normalize(features, dim=1)
        share = torch.stack([(radius >= distances(x)[:, None]).float().mean(dim=0) for x in unit])
        return -sizes[(share < k).sum(dim=1)]  # shares grow with the size

    return lambda: score


def fit_weiper(
    inputs: MethodInputs,
    n_repeats: int,
    perturbation_distance: float,
    n_bins: int,
    smoothing: Sequence[int],
) -> FittedMethod:
    """How far the histograms of a sample's features and perturbed logits are from the mean ones.

    The logits are those of `n_repeats` heads with random perturbations of the weights.
    """
    weight, bias = (part.to(inputs.device) for part in inputs.head)
    noise = F.normalize(torch.randn(n_repeats, *weight.shape), dim=2).to(weight)
    noise *= perturbation_distance * weight.norm(dim=1, keepdim=True)
    heads, shift = (weight + noise).flatten(0, 1), bias.repeat(n_repeats)

    def spaces(features: Tensor) -> tuple[Tensor, Tensor]:
        return features, features @ heads.T + shift

    def histograms(values: Tensor, ends: Tensor) -> Tensor:
        steps = torch.arange(n_bins + 1, device=values.device) / n_bins
        edges = ends[0] + steps * (ends[1] - ends[0])
        bins = torch.bucketize(values, edges, right=True)
        counts = values.new_zeros(len(values), n_bins + 2)
        counts.scatter_add_(1, bins, torch.ones_like(values))
        return counts[:, 1:-1] / values.shape[1]

    def divergence(found: Tensor, mean: Tensor, eps: float, width: int) -> Tensor:
        pad = (width - 1) // 2, width // 2
        found = F.avg_pool1d(F.pad(found[:, None], pad, mode="replicate"), width, stride=1)[:, 0]
        p, q = (F.normalize(each + eps, p=1, dim=-1) for each in (mean, found))
        return ((p - q) * (p.log() - q.log())).sum(dim=1)

    values = inputs.collect(inputs.train)[0]
    parts = in_parts(values, len(heads))
    extremes = torch.stack(
        [torch.stack([torch.stack(s.aminmax()) for s in spaces(part.to(weight))]) for part in parts]
    )
    ends = torch.stack([extremes[..., 0].amin(dim=0), extremes[..., 1].amax(dim=0)], dim=1)
    found = [list(map(histograms, spaces(part.to(weight)), ends)) for part in parts]
    means = [sum(each.sum(dim=0) for each in column) / len(values) for column in zip(*found)]

    def use(lambda_1: float, lambda_2: float) -> ScoreFunction:
        def score(features: Tensor, logits: Tensor) -> Tensor:
            both = spaces(features.to(weight))
            by_space = map(divergence, map(histograms, both, ends), means, _EPS, smoothing)
            of_features, of_logits = by_space
            posteriors = both[1].unflatten(1, (n_repeats, -1)).softmax(dim=2)
            confidence = posteriors.amax(dim=2).mean(dim=1)
            return lambda_2 * confidence - of_features - lambda_1 * of_logits

        return score

    return use


# ---- Mahalanobis++: features of unit length


def fit_mds_pp(inputs: MethodInputs) -> FittedMethod:
    """Mahalanobis distance to the nearest class, of features of unit length."""
    return _mahalanobis("mds_pp", inputs, relative=False)


def fit_rmds_pp(inputs: MethodInputs) -> FittedMethod:
    """The same, relative to the distance to all training data."""
    return _mahalanobis("rmds_pp", inputs, relative=True)


def _mahalanobis(method: str, inputs: MethodInputs, *, relative: bool) -> FittedMethod:
    values, label = inputs.collect(inputs.train)
    inputs.check_classes(method, label)
    F.normalize(values, dim=1, out=values)
    centers = torch.stack([values[label == c].mean(dim=0) for c in range(inputs.n_classes)])
    groups = [(centers, centers[label])]
    if relative:
        whole = values.mean(dim=0, keepdim=True)
        groups.append((whole, whole))
    fitted = [
        [part.to(inputs.device) for part in (means.double(), _precision(values - nearest))]
        for means, nearest in groups
    ]

    def score(features: Tensor, logits: Tensor) -> Tensor:
        x = F.normalize(features, dim=1).double()
        to_class, *to_all = (_distances(x, *gaussian).min(dim=1).values for gaussian in fitted)
        return -to_class + sum(to_all)

    return lambda: score


def _precision(centered: Tensor) -> Tensor:
    """The inverse covariance in float64, as scikit-learn computes it for OpenOOD's MDS."""
    covariance = sum(part.double().T @ part.double() for part in centered.split(8192))
    return torch.linalg.pinv(covariance / len(centered), hermitian=True)


def _distances(x: Tensor, centers: Tensor, precision: Tensor) -> Tensor:
    """Squared Mahalanobis distances `[batch, centers]`."""
    both = x @ precision
    own = (both * x).sum(dim=1, keepdim=True) - 2 * both @ centers.T
    return own + ((centers @ precision) * centers).sum(dim=1)


def fit_residual(inputs: MethodInputs) -> FittedMethod:
    """Norm outside the principal subspace of training features, as in ViM."""
    values = inputs.collect(inputs.train)[0]
    weight, bias = (part.double() for part in inputs.head)
    origin = -torch.linalg.pinv(weight) @ bias
    parts = [part.double() - origin for part in values.split(8192)]
    vectors = torch.linalg.eigh(sum(part.T @ part for part in parts)).eigenvectors.flip(1)
    device = inputs.device

    def use(dim: int) -> ScoreFunction:
        outside, center = vectors[:, dim:].to(device), origin.to(device)
        return lambda features, _: -((features.double() - center) @ outside).norm(dim=1)

    return use
