"""Means and covariances that add up exactly, and the distance from a Gaussian made of them.

Sums of floating-point numbers depend on their order, so those of two shards would differ from those
of one pass. Activations are therefore rounded to multiples of 2**-28 and multiplied as integers,
and the products are added as integers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nac_openood.core.devices import Placed, double
from nac_openood.errors import NACError

_STEP = 2.0**-28
#: Larger activations count as this one. Room for the sums of four million such samples.
_LARGEST = 2.0**15
#: A value has three digits of 15 bits; a sum of products is `high * 2**45 + low`.
_DIGIT, _LOW = 15, 45
_SHRINKAGE = 0.01


class Moments:
    """The sum of `x x^T` over samples, where `x` is a constant 1 followed by the activations.

    So it holds the number of samples, the sum of the activations and the sum of their products.

    Args:
        high, low: int64 `[neurons + 1, neurons + 1]`, symmetric.
    """

    def __init__(self, high: Tensor, low: Tensor) -> None:
        self.high, self.low = high, low

    @classmethod
    def empty(cls, neurons: int, device: torch.device) -> Moments:
        """No samples yet."""
        zeros = torch.zeros((neurons + 1, neurons + 1), dtype=torch.int64, device=device)
        return cls(zeros, zeros.clone())

    @classmethod
    def of_sums(cls, high: Tensor, low: Tensor) -> Moments:
        """Moments whose low parts, added up over shards, may have grown too large."""
        found = cls(torch.zeros_like(high), torch.zeros_like(low))
        found._add(high, low)
        return found

    @property
    def neurons(self) -> int:
        """How many there are."""
        return self.high.shape[0] - 1

    def update(self, values: Tensor) -> None:
        """Add activations `[batch, neurons]`; NaN counts as zero."""
        x = double(values).nan_to_num(0.0, _LARGEST, -_LARGEST).clamp(-_LARGEST, _LARGEST)
        x = torch.cat([torch.ones_like(x[:, :1]), x], dim=1)
        first, second, third = _digits((x / _STEP).round())
        # every product of digits and every sum of them below is exact in float64
        cross = [a.t() @ b for a, b in ((first, second), (first, third), (second, third))]
        ones, tens, hundreds, thousands, most = (
            part.long().to(self.low.device)
            for part in (
                first.t() @ first,
                cross[0] + cross[0].t(),
                cross[1] + cross[1].t() + second.t() @ second,
                cross[2] + cross[2].t(),
                third.t() @ third,
            )
        )
        carried = hundreds >> _DIGIT
        rest = hundreds - (carried << _DIGIT)
        self._add(
            thousands + (most << _DIGIT) + carried,
            ones + (tens << _DIGIT) + (rest << (2 * _DIGIT)),
        )

    def to(self, device: torch.device) -> Moments:
        """Move the sums; returns itself."""
        self.high, self.low = self.high.to(device), self.low.to(device)
        return self

    def merge(self, other: Moments) -> None:
        """Add the moments of another layer of the same width."""
        if self.neurons != other.neurons:
            raise NACError(
                f"cannot merge moments of {self.neurons} and {other.neurons} neurons: both must "
                "come from the same layer."
            )
        self._add(other.high.to(self.high.device), other.low.to(self.low.device))

    def _add(self, high: Tensor, low: Tensor) -> None:
        low = self.low + low
        carried = low >> _LOW
        self.high, self.low = self.high + high + carried, low - (carried << _LOW)

    def products(self) -> Tensor:
        """The sum of `x x^T`, float64 `[neurons + 1, neurons + 1]`."""
        return (double(self.high) * 2.0**_LOW + double(self.low)) * _STEP**2


class Gaussian:
    """One Gaussian for the activations of a layer; no labels are needed.

    Args:
        moments: of the training data.
    """

    def __init__(self, moments: Moments) -> None:
        products = moments.products()
        products = products / products[0, 0]
        mean = products[0, 1:].clone()  # not a view, which would keep all products
        covariance = products[1:, 1:] - torch.outer(mean, mean)
        # neurons that never vary, and fewer samples than neurons, would make it singular
        ridge = _SHRINKAGE * covariance.diagonal().mean() + 1e-12
        eye = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
        root, failed = torch.linalg.cholesky_ex(covariance + ridge * eye)
        if int(failed):
            raise NACError("the moments of a layer are no covariances of any data: fit again.")
        whiten = torch.linalg.solve_triangular(root, eye, upper=False).t().contiguous()
        self._learned = Placed(mean, whiten)

    def score(self, activation: Tensor) -> Tensor:
        """The negative squared Mahalanobis distance of `[batch, neurons]`, float64 `[batch]`."""
        z = double(activation)
        mean, whiten = self._learned.on(z.device)
        return -((z - mean) @ whiten).square().sum(dim=1)


def _digits(integers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whole numbers as three digits of 15 bits, lowest first; the last one has the sign."""
    base = 2.0**_DIGIT
    third = (integers / base**2).floor()
    rest = integers - third * base**2
    second = (rest / base).floor()
    return rest - second * base, second, third
