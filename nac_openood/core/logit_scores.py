"""Scores of logits alone; higher means more in-distribution."""

from __future__ import annotations

from torch import Tensor

from nac_openood.core.devices import double

_CLIP = 1e-12
#: GEN looks at so many of the largest probabilities, with an exponent below 1, so that small ones
#: count. Both are the authors'.
_TOP, _GAMMA = 100, 0.1


def msp(logits: Tensor) -> Tensor:
    """The largest probability (Hendrycks & Gimpel, ICLR 2017), float64 `[batch]`."""
    return double(logits).softmax(dim=1).amax(dim=1)


def energy(logits: Tensor) -> Tensor:
    """The negative free energy (Liu et al., NeurIPS 2020), float64 `[batch]`."""
    return double(logits).logsumexp(dim=1)


def gen(logits: Tensor) -> Tensor:
    """GEN (Liu et al., CVPR 2023), the negative generalized entropy, float64 `[batch]`."""
    p = double(logits).softmax(dim=1)
    p = p.topk(min(_TOP, p.shape[1]), dim=1).values.clamp(_CLIP, 1 - _CLIP)
    return -(p**_GAMMA * (1 - p) ** _GAMMA).sum(dim=1)
