"""What NAC+ learns about one layer: counts for the coverage, moments for the distance.

For the input of the head, it learns moments of features and logits, which the alignment needs. All
statistics add up exactly, so that shards of the training data give the same as one pass:

- Activations are counted on a fixed fine grid, that of floating-point numbers with few mantissa
  bits. It does not depend on the data; quantiles and histograms are computed from it afterwards.
- Activations are rounded to multiples of 2**-28, and multiplied and added as integers.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Mapping, Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from nac_openood.core.histogram import Histogram
from nac_openood.core.layer_config import TYPICAL
from nac_openood.core.reading import DeviceTensors, double
from nac_openood.errors import NACError

#: Wider layers have no distance: their covariance would take too much memory.
MAX_NEURONS = 2048


class LayerEvidence:
    """Statistics of the activations of the training data.

    Args:
        counts: how often each neuron was in which range.
        moments: means and covariances; None for layers wider than `MAX_NEURONS`.
    """

    def __init__(self, counts: FineCounts, moments: Optional[Moments]) -> None:
        self.counts, self.moments = counts, moments

    @classmethod
    def empty(cls, neurons: int, device: torch.device) -> LayerEvidence:
        """No samples yet."""
        none = torch.empty((0, neurons), device=device)
        moments = Moments.of(none) if neurons <= MAX_NEURONS else None
        return cls(FineCounts.empty(neurons, N_CELLS, device), moments)

    @property
    def n_samples(self) -> int:
        """How many samples were counted."""
        return self.counts.n_samples

    def update(self, activation: Tensor) -> None:
        """Add activations `[batch, neurons]`, on their device."""
        self.counts.to(activation.device).update(activation)
        if self.moments is not None:
            self.moments += Moments.of(activation)
        vars(self).pop("coverage", None)

    @cached_property
    def coverage(self) -> ActivationCoverage:
        """The coverage of each neuron."""
        return ActivationCoverage(self.counts)

    def sums(self) -> dict[str, Tensor]:
        """The tensors that merging adds up, by name."""
        moments = {} if self.moments is None else self.moments.sums()
        return {"counts": self.counts.counts, **moments}

    @classmethod
    def of_sums(cls, sums: Mapping[str, Tensor]) -> LayerEvidence:
        """Make the evidence from its `sums`."""
        counts = FineCounts.of_sums(sums["counts"], N_CELLS)
        return cls(counts, Moments(sums["high"], sums["low"]) if "high" in sums else None)

    def tensors(self) -> dict[str, Tensor]:
        """For a file: counts without empty cells at both ends, half of the symmetric moments."""
        used = self.counts.counts.any(dim=0).nonzero()[:, 0]
        first, end = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
        return {
            "counts": self.counts.counts[:, first:end].contiguous(),
            "first_cell": torch.tensor(first),
            "n_samples": torch.tensor(self.n_samples),
            **({} if self.moments is None else self.moments.tensors()),
        }

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor]) -> LayerEvidence:
        """Restore the evidence from its `tensors`."""
        kept, first, n = tensors["counts"], int(tensors["first_cell"]), int(tensors["n_samples"])
        after = N_CELLS - first - kept.shape[1]
        counts = FineCounts(F.pad(kept, (first, after)), n_bins=N_CELLS, n_samples=n)
        counts.check("counts")
        if len(kept) > MAX_NEURONS:
            return cls(counts, None)
        moments = Moments.restore(tensors, len(kept))
        if moments.n_samples != n:
            raise NACError("the moments are of another number of samples than the counts.")
        return cls(counts, moments)


def _upper(size: int) -> tuple[Tensor, Tensor]:
    """Rows and columns of the upper half of a square matrix."""
    rows, columns = torch.triu_indices(size, size)
    return rows, columns


# -- coverage of each neuron ----------------------------------------------------------------

#: 64 cells per power of two: a cell is 1 to 2 % of the value wide.
_MANTISSA_BITS = 6
#: Magnitudes from 2**-16 to 2**16; smaller ones are zero, larger ones the largest.
_LOWEST, _HIGHEST = -16, 16
_PER_SIGN = (_HIGHEST - _LOWEST) << _MANTISSA_BITS
#: Negative cells (most negative first), zero, positive cells.
N_CELLS = 2 * _PER_SIGN + 1


def cell_index(values: Tensor) -> Tensor:
    """The cell of every value, int64 in the shape of `values`; NaN counts as zero."""
    values = values.float()
    bits = values.abs().contiguous().view(torch.int32).to(torch.int64)
    # IEEE 754: shifting out mantissa bits leaves exponent and leading mantissa as one number
    magnitude = (bits >> (23 - _MANTISSA_BITS)) - ((_LOWEST + 127) << _MANTISSA_BITS) + 1
    magnitude = magnitude.clamp(0, _PER_SIGN).masked_fill(values.isnan(), 0)
    return _PER_SIGN + torch.where(values < 0, -magnitude, magnitude)


@lru_cache(maxsize=8)
def cell_edges(device: torch.device) -> Tensor:
    """The lower edge of every cell, and the upper edge of the last, float64 `[N_CELLS + 1]`.

    The cell around zero begins and ends at zero: the values in it count as zero.
    """
    index = torch.arange(_PER_SIGN + 1, dtype=torch.float64)
    per_octave = 2**_MANTISSA_BITS
    octave, step = index.div(per_octave, rounding_mode="floor"), index % per_octave
    edges = torch.exp2(octave + _LOWEST) * (1 + step / per_octave)
    edges[0] = 0.0
    return torch.cat([-edges.flip(0), edges]).to(device)


class FineCounts(Histogram):
    """How often each neuron was in each cell: `n_bins` is `N_CELLS`, the number of columns."""

    @staticmethod
    def width(n_bins: int) -> int:
        """The number of columns of the counts."""
        return n_bins

    @staticmethod
    def bins(states: Tensor, n_bins: int) -> Tensor:
        """The cell of every value, int64 in the shape of `states`."""
        return cell_index(states)

    def magnitude_quantile(self, share: float) -> Tensor:
        """The `share` quantile of the absolute values, float64 `[neurons]`.

        Values are taken to be evenly spread over their cell.
        """
        folded = self.counts[:, : _PER_SIGN + 1].flip(1).long()
        folded[:, 1:] += self.counts[:, _PER_SIGN + 1 :]
        position = share * (self.n_samples - 1)
        rank = int(position)
        low = self._ranked(folded, rank)
        high = self._ranked(folded, min(rank + 1, self.n_samples - 1))
        return torch.lerp(low, high, position - rank)

    @staticmethod
    def _ranked(folded: Tensor, rank: int) -> Tensor:
        """The magnitude with `rank` smaller ones, `[neurons]`."""
        reached = folded.cumsum(dim=1)
        cell = (reached > rank).int().argmax(dim=1, keepdim=True)
        inside = folded.gather(1, cell)
        before = reached.gather(1, cell) - inside
        edges = cell_edges(folded.device)[_PER_SIGN:]
        low, high = edges[cell], edges[cell + 1]
        return (low + (rank - before + 0.5) / inside * (high - low)).squeeze(1)

    def count_below(self, values: Tensor) -> Tensor:
        """How many counted values are smaller than `values` `[neurons, k]`, in that shape.

        Values are taken to be evenly spread over their cell, so this is not a whole number.
        """
        edges = cell_edges(values.device)
        cell = (torch.searchsorted(edges, values.contiguous(), right=True) - 1).clamp(
            0, N_CELLS - 1
        )
        # the cell around zero has no width: nothing in it is below a value of zero
        zero = values == 0
        cell = cell.masked_fill(zero, _PER_SIGN)
        inside = self.counts.gather(1, cell)
        before = self.counts.cumsum(dim=1).gather(1, cell) - inside
        low, high = edges[cell], edges[cell + 1]
        share = ((values - low) / (high - low)).clamp(0, 1).masked_fill(zero, 0.0)
        return before + share * inside


_N_BINS = 50
_SIZE, _SIZE_FLOOR = 0.95, 0.10  # quantiles: of |z| per neuron, and of the sizes per layer
_SMOOTHING = 0.5


class ActivationCoverage:
    """The log coverage of every neuron and bin of a layer.

    A neuron's activation is measured against its own typical size, squashed by a sigmoid and put
    into one of 50 equal bins; the evidence is the logarithm of how full the bin is, relative to an
    even spread. See `docs/method.md`.

    Args:
        counts: counts of the training data.
    """

    def __init__(self, counts: FineCounts) -> None:
        sizes = counts.magnitude_quantile(_SIZE)
        sizes = sizes.clamp(min=float(sizes.quantile(_SIZE_FLOOR)) + 1e-12)
        slope = TYPICAL / sizes
        inner = torch.arange(1, _N_BINS, dtype=torch.float64, device=sizes.device) / _N_BINS
        below = counts.count_below(inner.logit() / slope[:, None])
        everything = below.new_full((len(sizes), 1), counts.n_samples)
        filled = torch.cat([torch.zeros_like(everything), below, everything], dim=1).diff(dim=1)
        share = (filled + _SMOOTHING) * _N_BINS / counts.n_samples
        self._learned = DeviceTensors(slope, share.log().clamp(max=0.0))

    def neurons(self, activation: Tensor) -> Tensor:
        """Log coverage of activations `[batch, neurons]`, in that shape; 0 is fully covered."""
        z = double(activation)
        slope, table = self._learned.on(z.device)
        states = torch.sigmoid(z * slope)
        bins = (states * _N_BINS).nan_to_num(0.0, 0.0, 0.0).long().clamp_(max=_N_BINS - 1)
        return table.gather(1, bins.t()).t()

    def score(self, activation: Tensor) -> Tensor:
        """Mean log coverage over neurons, float64 `[batch]`."""
        return self.neurons(activation).mean(dim=1)


# -- distance of all neurons at once --------------------------------------------------------

_STEP = 2.0**-28
#: Larger activations count as this one. Room for the sums of four million such samples.
_LARGEST = 2.0**15
#: A value has three digits of 15 bits; a sum of products is `high * 2**45 + low`.
_DIGIT, _LOW = 15, 45
_SHRINKAGE = 0.01


class Moments:
    """The sum of `x x^T` over samples, where `x` is a constant 1 followed by the activations.

    It holds the number of samples, the sum of the activations and the sum of their products, and
    gives the distance of new samples from the Gaussian with these moments.

    Args:
        high, low: int64 `[neurons + 1, neurons + 1]`, symmetric. What is too large for `low` is
            carried over to `high`.
    """

    def __init__(self, high: Tensor, low: Tensor) -> None:
        carried = low >> _LOW
        self.high, self.low = high + carried, low - (carried << _LOW)

    @classmethod
    def of(cls, values: Tensor) -> Moments:
        """The moments of activations `[batch, neurons]`, on their device; NaN counts as zero."""
        x = double(values).nan_to_num(0.0, _LARGEST, -_LARGEST).clamp(-_LARGEST, _LARGEST)
        x = torch.cat([torch.ones_like(x[:, :1]), x], dim=1)
        # three digits of 15 bits, the highest with the sign
        whole, base = (x / _STEP).round(), 2.0**_DIGIT
        third = (whole / base**2).floor()
        rest = whole - third * base**2
        second = (rest / base).floor()
        first = rest - second * base
        # every product of digits and every sum of them is exact in float64
        cross = [a.t() @ b for a, b in ((first, second), (first, third), (second, third))]
        ones, tens, hundreds, thousands, most = (
            part.long().to(values.device)
            for part in (
                first.t() @ first,
                cross[0] + cross[0].t(),
                cross[1] + cross[1].t() + second.t() @ second,
                cross[2] + cross[2].t(),
                third.t() @ third,
            )
        )
        carried = hundreds >> _DIGIT
        remainder = hundreds - (carried << _DIGIT)
        high = thousands + (most << _DIGIT) + carried
        return cls(high, ones + (tens << _DIGIT) + (remainder << (2 * _DIGIT)))

    def __add__(self, other: Moments) -> Moments:
        """The total, on the device of `other`."""
        device = other.high.device
        return Moments(self.high.to(device) + other.high, self.low.to(device) + other.low)

    @property
    def n_samples(self) -> int:
        """How many samples were added."""
        return round(float(self.products()[0, 0]))

    def sums(self) -> dict[str, Tensor]:
        """The tensors that merging adds up, by name."""
        return {"high": self.high, "low": self.low}

    def tensors(self) -> dict[str, Tensor]:
        """For a file: half of the symmetric sums."""
        return {f"moments/{name}": t.cpu()[_upper(len(t))] for name, t in self.sums().items()}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], neurons: int) -> Moments:
        """Restore the moments from their `tensors`."""
        rows, columns = _upper(neurons + 1)
        found = []
        for name in ("moments/high", "moments/low"):
            found.append(torch.empty(2 * [neurons + 1], dtype=torch.int64))
            found[-1][rows, columns] = found[-1][columns, rows] = tensors[name]
        return cls(*found)

    def products(self) -> Tensor:
        """The sum of `x x^T`, float64 `[neurons + 1, neurons + 1]`."""
        return (double(self.high) * 2.0**_LOW + double(self.low)) * _STEP**2

    @cached_property
    def _gaussian(self) -> DeviceTensors:
        """The mean of the activations, and the matrix that whitens deviations from it."""
        products = self.products()
        products = products / products[0, 0]
        mean = products[0, 1:].clone()  # not a view, which would keep all products
        covariance = products[1:, 1:] - torch.outer(mean, mean)
        # neurons that never vary, and fewer samples than neurons, would make it singular
        ridge = _SHRINKAGE * covariance.diagonal().mean() + 1e-12
        eye = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
        root = torch.linalg.cholesky(covariance + ridge * eye)
        whiten = torch.linalg.solve_triangular(root, eye, upper=False).t().contiguous()
        return DeviceTensors(mean, whiten)

    def score(self, activation: Tensor) -> Tensor:
        """The negative squared Mahalanobis distance of `[batch, neurons]`, float64 `[batch]`."""
        z = double(activation)
        mean, whiten = self._gaussian.on(z.device)
        return -((z - mean) @ whiten).square().sum(dim=1)


# -- the input of the head and the logits ---------------------------------------------------

#: Logits are rounded to multiples of this, and squared in two digits of 18 bits.
_LOGIT_STEP, _LOGIT_DIGIT = 2.0**-20, 2.0**18


class HeadEvidence:
    """Moments of the input of the head, and of each logit relative to the mean logit of its sample.

    They tell how far a sample is from the mean, and how far its logits are towards a class. With a
    linear head, the second divided by the first is the largest cosine between the features and the
    weights of a class, both relative to their means and whitened by the covariance of the training
    data: the product is a logit relative to its mean, and the lengths are the Mahalanobis distance
    of the features and the standard deviation of the logit. So the head is not needed.

    Args:
        moments: of the features.
        logits: int64 `[4, classes]`: sums of the logits, and of their squares in three parts.
    """

    def __init__(self, moments: Moments, logits: Tensor) -> None:
        self.moments, self.logits = moments, logits

    @classmethod
    def empty(cls, neurons: int, classes: int, device: torch.device) -> HeadEvidence:
        """No samples yet."""
        logits = torch.zeros((4, classes), dtype=torch.int64, device=device)
        return cls(Moments.of(torch.empty((0, neurons), device=device)), logits)

    @property
    def n_samples(self) -> int:
        """How many samples were counted."""
        return self.moments.n_samples

    def update(self, features: Tensor, logits: Tensor) -> None:
        """Add features `[batch, neurons]` and logits `[batch, classes]`, on their device."""
        self.moments += Moments.of(features)
        x = _relative(logits).nan_to_num(0.0, _LARGEST, -_LARGEST).clamp(-_LARGEST, _LARGEST)
        whole = (x / _LOGIT_STEP).round()
        high = (whole / _LOGIT_DIGIT).floor()
        low = whole - high * _LOGIT_DIGIT
        sums = torch.stack([whole, high * high, high * low, low * low]).long().sum(dim=1)
        self.logits = self.logits.to(sums.device) + sums
        vars(self).pop("_standard", None)

    @cached_property
    def _standard(self) -> DeviceTensors:
        """The mean and the standard deviation of each relative logit."""
        n = self.n_samples
        total, high, mixed, low = double(self.logits)
        mean = total * _LOGIT_STEP / n
        squares = (high * _LOGIT_DIGIT + 2 * mixed) * _LOGIT_DIGIT + low
        deviation = (squares * _LOGIT_STEP**2 / n - mean**2).clamp(min=0.0).sqrt()
        # a class that never varies would outdo all others
        deviation = deviation.clamp(min=0.01 * float(deviation.mean()) + 1e-12)
        return DeviceTensors(mean, deviation)

    def distance(self, features: Tensor) -> Tensor:
        """The Mahalanobis distance of `[batch, neurons]`, float64 `[batch]`."""
        return (-self.moments.score(features)).sqrt()

    def towards(self, logits: Tensor) -> Tensor:
        """The largest standardized logit of `[batch, classes]`, float64 `[batch]`."""
        relative = _relative(logits)
        mean, deviation = self._standard.on(relative.device)
        return ((relative - mean) / deviation).amax(dim=1)

    def sums(self) -> dict[str, Tensor]:
        """The tensors that merging adds up, by name."""
        return {"logits": self.logits, **self.moments.sums()}

    @classmethod
    def of_sums(cls, sums: Mapping[str, Tensor]) -> HeadEvidence:
        """Make the evidence from its `sums`."""
        return cls(Moments(sums["high"], sums["low"]), sums["logits"])

    def tensors(self) -> dict[str, Tensor]:
        """For a file."""
        return {"logits": self.logits.cpu(), **self.moments.tensors()}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor]) -> HeadEvidence:
        """Restore the evidence from its `tensors`."""
        # half of a symmetric matrix of n rows has n (n + 1) / 2 entries
        rows = int((2 * len(tensors["moments/high"])) ** 0.5)
        return cls(Moments.restore(tensors, rows - 1), tensors["logits"])


def _relative(logits: Tensor) -> Tensor:
    """Logits relative to the mean logit of each sample, float64."""
    x = double(logits)
    return x - x.mean(dim=1, keepdim=True)
