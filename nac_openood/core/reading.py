"""What one pass over the network gives: logits, and a reading of each layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Mapping, NamedTuple, Optional

from torch import Tensor

from nac_openood.errors import NACError


class Reading(NamedTuple):
    """Activations and gradients of a layer for a batch: detached tensors `[batch, neurons]`.

    `gradient` is None where the pass was not asked for it.
    """

    activation: Tensor
    gradient: Optional[Tensor] = None


class ByLayer(Mapping[str, Reading]):
    """Base of classes that map layer names to readings."""

    by_layer: Mapping[str, Reading]

    def __getitem__(self, name: str) -> Reading:
        return self.by_layer[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_layer)

    def __len__(self) -> int:
        return len(self.by_layer)


@dataclass(frozen=True)
class Probed(ByLayer):
    """The outcome of a pass: a mapping of layer name to `Reading`, with the logits.

    Args:
        logits: `[batch, classes]`.
        by_layer: readings by layer name.
    """

    logits: Tensor
    by_layer: Mapping[str, Reading]


def logits_in(readings: Mapping[str, Reading]) -> Tensor:
    """The logits `[batch, classes]` that came with readings.

    Raises:
        NACError: where there are none: a plain dict, or a file of an old version.
    """
    logits: Optional[Tensor] = getattr(readings, "logits", None)
    if logits is None:
        raise NACError(
            "these readings have no logits, which this rule needs. Read the network again with "
            "NACDetector.read_loader."
        )
    return logits


def reading_in(readings: Mapping[str, Reading], name: str) -> Reading:
    """The reading of a layer, or an error that says which layers there are."""
    if name not in readings:
        raise NACError(
            f"readings of layer '{name}' are missing; got {sorted(readings)}. "
            "Collect them with the layers that are fitted and scored."
        )
    return readings[name]


def not_finite(*readings: Reading) -> Tensor:
    """Which samples have a NaN or Inf in any of their readings, `[batch]`, where the first is."""
    broken = ~_finite(readings[0])
    for reading in readings[1:]:
        broken = broken | ~_finite(reading).to(broken.device)
    return broken


def _finite(reading: Reading) -> Tensor:
    finite = reading.activation.isfinite()
    if reading.gradient is not None:
        finite = finite & reading.gradient.isfinite()
    return finite.all(dim=1)


def broken_error(count: int, of: str, layer: Optional[str] = None, *, then: str = "") -> NACError:
    """The error of samples that cannot be counted.

    Args:
        count: how many there are.
        of: of how many of what, e.g. "1000 fitting samples".
        layer: where; None if it is not known.
        then: what became of them.
    """
    where = "" if layer is None else f"layer '{layer}': "
    return NACError(
        f"{where}{count} of {of} have NaN or Inf readings{then}. Check the inputs (normalization, "
        "corrupt images) and the precision (float16 overflows where bfloat16 does not)."
    )
