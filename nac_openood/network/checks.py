"""What makes the scores of a network doubtful: unusual outputs, randomness, unusual inputs."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any, Iterable, Mapping, Optional, Sequence

import torch
from torch import Tensor, nn

from nac_openood.errors import ProbeError
from nac_openood.network.architectures import Layer
from nac_openood.network.flow import record
from nac_openood.network.inputs import describe_value, prepare, rows, sample_count, tensors_in
from nac_openood.network.probe import read
from nac_openood.network.replica import run_without_grad, unwrap

#: How many values, all of them between 0 and 1, look like the output of a sigmoid.
_ENOUGH_VALUES = 64
#: How many positions of an input are used, how many samples of a batch that is scored, and how many
#: samples it takes to compare mean and spread.
_POSITIONS, _SAMPLES, _ENOUGH_SAMPLES = 1024, 16, 8
#: A spread may be this many times another, a mean this many spreads away, a range this much
#: narrower.
_RATIO, _DISTANCE, _NARROW = 3.5, 2.5, 50
#: How many samples of a fit can be recognized later: those with the smallest hashes.
_MOST_HASHES = 1000
#: Sums are kept in units of this, so that they do not depend on the order of the samples.
_UNIT = 2.0**-20


# -- outputs -----------------------------------------------------------------------------------


def check_outputs(net: nn.Module, x: Any) -> None:
    """Raise if the first of several outputs is not the logits, but features they are computed from.

    Args:
        net: the network.
        x: a batch; three samples are used.
    """
    inner = unwrap(net)
    few = rows(prepare(inner, x), slice(3))
    output = run_without_grad(inner, few)
    if not isinstance(output, (tuple, list)) or hasattr(output, "logits"):
        return
    alike = [t for t in output if isinstance(t, Tensor) and t.ndim == 2 and t.shape[1] > 1]
    if len({t.shape[1] for t in alike}) < 2 or alike[0] is not output[0]:
        return
    recorded = record(inner, few)
    values = [recorded.value(t) if isinstance(t, Tensor) else None for t in recorded.output]
    if values[0] is None:
        return
    dependent = recorded.computed_from(values[0].node)
    for index, value in enumerate(values):
        if value is None or len(value.shape) != 2 or value.shape == values[0].shape:
            continue
        if value.node in dependent:
            raise ProbeError(
                f"{type(inner).__name__} returns {describe_value(output)}, and number {index} is "
                "computed from the first, which is read as logits and looks like features. Name "
                f"the logits: NACDetector(net, layers, output={index}), or output=0 for the first."
            )


def doubtful_logits(logits: Tensor) -> str:
    """Why outputs `[batch, classes]` are probably not logits; "" if they may be."""
    one = logits.shape[1] == 2 and not bool(logits[:, 0].any())  # the network returned one logit
    z = (logits[:, 1:] if one else logits).detach().float()
    low, high = float(z.min()), float(z.max())
    if low >= 0 and not one and bool(((z.sum(dim=1) - 1).abs() < 0.02).all()):
        return "are probabilities: the rows sum to 1, as after a softmax. Return the logits instead"
    if high <= 0 and not one and bool((z.logsumexp(dim=1).abs() < 1e-3).all()):
        return "are logarithms of probabilities, as after a log_softmax. Return the logits instead"
    # logits of a network that is not trained are often small and positive, too
    if low >= 0 and 0.5 < high <= 1 and low < high and z.numel() >= _ENOUGH_VALUES:
        return "all lie between 0 and 1, as after a sigmoid. Return the logits instead"
    return ""


# -- randomness ---------------------------------------------------------------------------------


def unstable(net: nn.Module, x: Any, layers: Mapping[str, Layer], *, draws: bool = False) -> str:
    """Why repeated readings of a sample differ; "" if they do not.

    Args:
        net: the network.
        x: a batch; three samples are passed twice, and then with other samples beside them.
        layers: what to read, by name.
        draws: whether the network is known to draw random numbers.
    """
    x = prepare(unwrap(net), x)
    n, found = sample_count(x), []
    if n < 2:
        return ""
    for index in ((0, 1, min(2, n - 1)), (0, 1, min(2, n - 1)), (1, 0, 0)):
        readings = read(net, rows(x, torch.tensor(index)), layers, gradients=())
        found.append([readings.logits, *(reading.activation for reading in readings.values())])
    first, again, other = found
    if draws or any(map(_differ, first, again)):
        return (
            "differ when the same batch is passed again: the network draws random numbers in "
            "evaluation mode, as dropout that stays on does"
        )
    if any(_differ(one[:2], two[:2].flip(0)) for one, two in zip(first, other)):
        return (
            "depend on the rest of its batch, as with BatchNorm without running statistics, a mean "
            "over the batch, or random numbers that are drawn for each position"
        )
    return ""


def _differ(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors differ by more than rounding."""
    kind = one.device.type
    half = torch.finfo(one.dtype).bits < 32 or (
        kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind)
    )
    rounding = 0.05 if half else 1e-3
    one, other = one.double(), other.double()
    largest = float(one.abs().nan_to_num(0, 0, 0).max())
    return not torch.allclose(one, other, rounding, rounding * largest, equal_nan=True)


# -- inputs -------------------------------------------------------------------------------------


def sample_hashes(x: Any) -> list[int]:
    """A hash of each sample of a batch, to recognize it later; empty on a GPU."""
    found: list[int] = []
    for tensor in tensors_in(x):
        if tensor.device.type != "cpu":  # reading a GPU would make it wait
            return []
        values = tensor.detach().reshape(len(tensor), -1)
        values = values[:, :: max(1, values.shape[1] // _POSITIONS)].contiguous()
        rows = values.view(torch.uint8).numpy()
        found = [zlib.crc32(row, before) for row, before in zip(rows, found or [0] * len(rows))]
    return found


def kept_hashes(*hashes: Iterable[int]) -> tuple[int, ...]:
    """The smallest of these numbers: a random selection that does not depend on their order."""
    return tuple(sorted(set().union(*hashes))[:_MOST_HASHES])


def overlap(hashes: Sequence[int], kept: Sequence[int]) -> str:
    """How many samples were part of a fit, as in "7 of 9"; "" if hardly any were.

    Args:
        hashes: of the samples.
        kept: of the samples of the fit, from `kept_hashes`.
    """
    if len(kept) == _MOST_HASHES:  # the fit may have had more samples
        hashes = [number for number in hashes if number <= kept[-1]]
    n = len(set(kept).intersection(hashes))
    return f"{n} of {len(hashes)}" if n > max(1, min(9, len(hashes) // 100)) else ""


@dataclass(frozen=True)
class InputRange:
    """The shape and the distribution of inputs; those of batches add up to that of all samples.

    Args:
        n_samples: how many samples there are.
        mean: the sum of the samples' means of each channel, in small units.
        square: the sum of the samples' mean squares of each channel, in the same units.
        low: the smallest value.
        high: the largest value.
        shape: the least and the largest size of each dimension after the first.
    """

    n_samples: int
    mean: tuple[int, ...]
    square: tuple[int, ...]
    low: float
    high: float
    shape: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, x: Any, n_samples: Optional[int] = None) -> Optional[InputRange]:
        """The range of a batch, of its first float tensor; None if it has none.

        Args:
            x: the batch.
            n_samples: how many samples to look at; None looks at all.
        """
        floats = [t for t in tensors_in(x) if t.is_floating_point() and t.ndim > 1 and t.numel()]
        if not floats or floats[0].device.type != "cpu":  # reading a GPU would make it wait
            return None
        tensor = floats[0].detach()
        shape = tuple((size, size) for size in tensor.shape[1:])
        tensor = tensor[:: math.ceil(len(tensor) / (n_samples or len(tensor)))]
        # images by channel; of other inputs, all values together
        by_channel = tensor.ndim == 4 and tensor.shape[1] <= 4
        values = tensor.flatten(2) if by_channel else tensor.flatten(1)[:, None]
        values = values[..., :: max(1, values.shape[2] // _POSITIONS)].double().nan_to_num(0, 0, 0)
        mean, square = (
            tuple(map(int, (part.mean(dim=2) / _UNIT).round().sum(dim=0).tolist()))
            for part in (values, values.square())
        )
        return cls(len(values), mean, square, float(values.min()), float(values.max()), shape)

    def __add__(self, other: InputRange) -> InputRange:
        same = len(self.mean) == len(other.mean) and len(self.shape) == len(other.shape)
        if not same:
            return self
        return InputRange(
            self.n_samples + other.n_samples,
            tuple(map(int.__add__, self.mean, other.mean)),
            tuple(map(int.__add__, self.square, other.square)),
            min(self.low, other.low),
            max(self.high, other.high),
            tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(self.shape, other.shape)),
        )

    def unlike(self, x: Any) -> str:
        """How a batch differs greatly from this range, in words; "" if it does not."""
        new = InputRange.of(x, _SAMPLES)
        if new is None or len(new.mean) != len(self.mean) or len(new.shape) != len(self.shape):
            return ""
        size = [n for n, _ in new.shape]
        limits = [(a, b) if a == b else (a / 2, 2 * b) for a, b in self.shape]
        if any(not least <= n <= most for n, (least, most) in zip(size, limits)):
            return f"its samples have size {size}, those before {[b for _, b in self.shape]}"
        width, new_width = self.high - self.low, new.high - new.low
        far = new.high > self.high + 2 * width or new.low < self.low - 2 * width
        if far or 0 < new_width < width / _NARROW:
            return (
                f"its values lie between {new.low:.3g} and {new.high:.3g}, those before between "
                f"{self.low:.3g} and {self.high:.3g}"
            )
        if new.n_samples < _ENOUGH_SAMPLES or not new_width:  # too few, or blank
            return ""
        for (mean, spread), (new_mean, new_spread) in zip(self._moments(), new._moments()):
            ratio = new_spread / spread if spread else 1.0
            if not 1 / _RATIO < ratio < _RATIO or abs(new_mean - mean) > _DISTANCE * spread > 0:
                return (
                    f"a channel has mean {new_mean:.3g} and spread {new_spread:.3g}, before it had "
                    f"{mean:.3g} and {spread:.3g}"
                )
        return ""

    def _moments(self) -> Sequence[tuple[float, float]]:
        """Mean and spread of each channel."""
        unit = _UNIT / self.n_samples
        pairs = [(mean * unit, square * unit) for mean, square in zip(self.mean, self.square)]
        return [(mean, math.sqrt(max(0.0, square - mean**2))) for mean, square in pairs]
