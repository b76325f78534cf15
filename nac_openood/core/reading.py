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
