"""Later methods that use gradients; no library is needed.

For the functions `fit_NAME` see `FunctionScorer`. Formulas and hyperparameters are OpenOOD's.
i-ODIN and AdaSCALE move an image by the gradient of its logits; GROOD needs features only.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nac_openood.benchmark.methods.scorer import FittedMethod, MethodInputs, ScoreFunction, in_parts
from nac_openood.network.head import head_of


def fit_grood(inputs: MethodInputs, n_noise_samples: int) -> FittedMethod:
    """Distance to the nearest gradient of training data, with respect to an OOD prototype.

    The loss is that of a nearest-mean classifier. The prototype is the mean of OOD validation data,
    or that of the class means if there are none.
    """
    net, device = inputs.net, inputs.device
    values, label = inputs.collect(inputs.train)
    inputs.check_classes("grood", label)
    means = torch.stack([values[label == c].mean(dim=0) for c in range(inputs.n_classes)])
    ood = means if inputs.ood_val is None else inputs.collect(inputs.ood_val)[0][:n_noise_samples]
    prototypes = torch.cat([means, ood.mean(dim=0, keepdim=True)]).to(device)

    def gradient(features: Tensor) -> Tensor:
        share = (-torch.cdist(features, prototypes)).softmax(dim=1)[:, -1:]
        return share * F.normalize(features - prototypes[-1], dim=1)

    right = inputs.collect(inputs.train, net)[0].argmax(dim=1) == label
    bank = gradient(values[right].to(device))

    def score(features: Tensor, logits: Tensor) -> Tensor:
        parts = in_parts(gradient(features), len(bank))
        return -torch.cat([torch.cdist(part, bank).amin(dim=1) for part in parts])

    return lambda: score


# ---- methods that change the image


def fit_iodin(inputs: MethodInputs) -> FittedMethod:
    """ODIN that moves an image in its most important value only."""
    inputs.check_movable()
    std = inputs.std or (0.5,)

    def use(temperature: float, noise: float) -> ScoreFunction:
        def loss(logits: Tensor) -> Tensor:
            return F.cross_entropy(logits / temperature, logits.argmax(dim=1))

        def score(x: Tensor) -> tuple[Tensor, Tensor]:
            logits, gradient = _gradient(x, lambda x: (inputs.logits(x),), loss)
            flat = gradient.abs().flatten(1)
            mask = F.one_hot(flat.argmax(dim=1), flat.shape[1]).view_as(x)
            step = gradient.ge(0).to(x) * 2 - 1
            moved = x - noise * step * mask / x.new_tensor(std).view(-1, *[1] * (x.ndim - 2))
            with torch.no_grad():
                found = inputs.logits(moved) / temperature
            return found.softmax(dim=1).amax(dim=1), logits

        return score

    return use


def fit_adascale_a(inputs: MethodInputs, **fixed: Any) -> FittedMethod:
    """SCALE at a percentile that depends on how much features change with a moved image."""
    return _adascale(inputs, lambda head, features, ratio: head(features * ratio.exp()), **fixed)


def fit_adascale_l(inputs: MethodInputs, **fixed: Any) -> FittedMethod:
    """AdaSCALE that scales the logits instead of the features."""
    return _adascale(inputs, lambda head, features, ratio: head(features) * ratio**2, **fixed)


def _adascale(
    inputs: MethodInputs,
    scaled_logits: Callable[[nn.Module, Tensor, Tensor], Tensor],
    num_samples: int,
    k1: float,
    k2: float,
    lmbda: float,
    o: float,
) -> FittedMethod:
    inputs.check_movable()
    net = inputs.net
    head = head_of(net, next(inputs.batches(inputs.id_val))[0])[1]

    def run_head(x: Tensor) -> tuple[Tensor, Tensor]:
        found: list[Tensor] = []
        on_input = [(head, lambda _, features: found.append(features[0].clone()))]
        return inputs.logits(x, on_input=on_input), found[-1]

    def read(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, features, and how much the largest of them depend on unimportant pixels."""
        logits, features, gradient = _gradient(x, run_head, lambda logits: logits.amax(dim=1).sum())
        flat = gradient.abs().flatten(1)
        lowest = flat.topk(int(flat.shape[1] * o), dim=1, largest=False).indices
        mask = torch.zeros_like(flat).scatter_(1, lowest, 1).view_as(x)
        with torch.no_grad():
            moved = run_head(x + 0.5 * gradient.sign() * mask)[1].float()
        sizes = (int(features.shape[1] * percent / 100) for percent in (k1, k2))
        first, second = (features.topk(size, dim=1).indices for size in sizes)
        shift = (features - moved).abs().gather(1, second).sum(dim=1)
        return logits, features, moved.relu().gather(1, first).sum(dim=1) + lmbda * shift

    known = torch.cat([read(x)[2] for x, _ in inputs.batches(inputs.id_val)])
    known = known[torch.randperm(len(known))[:num_samples].to(known.device)].sort().values

    def use(percentile: Sequence[float]) -> ScoreFunction:
        low, high = percentile

        @torch.no_grad()
        def score(x: Tensor) -> tuple[Tensor, Tensor]:
            logits, features, changed = read(x)
            above = 1 - torch.searchsorted(known, changed, right=True).double() / len(known)
            n = features.shape[1]
            kept = n - (n * (low + above * (high - low)) / 100).round().long()
            values = features.relu().sort(dim=1, descending=True).values
            largest = values * (torch.arange(n, device=x.device) < kept[:, None])
            ratio = values.sum(dim=1, keepdim=True) / largest.sum(dim=1, keepdim=True)
            scaled = scaled_logits(head, features.to(head.weight), ratio)
            return scaled.float().logsumexp(dim=1), logits

        return score

    return use


def _gradient(
    x: Tensor,
    forward: Callable[[Tensor], tuple[Tensor, ...]],
    function: Callable[[Tensor], Tensor],
) -> tuple[Tensor, ...]:
    """What `forward` returns, logits first, and the gradient of a function of the logits."""
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_()
        found = forward(x)
        gradient = torch.autograd.grad(function(found[0].float()), x)[0]
    return (*(each.detach().float() for each in found), gradient)
