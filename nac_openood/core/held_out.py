"""A few training samples set aside, to calibrate on where nothing else was given."""

from __future__ import annotations

from typing import Mapping, Optional

import torch
from torch import Tensor

from nac_openood.core.reading import Probed, Reading

_EVERY, _MOST = 10, 1000


class HeldOut:
    """Every tenth training sample, at most a thousand, with its readings.

    They are added to what is fitted as soon as there is real calibration data.
    """

    def __init__(self, readings: Optional[Probed] = None, seen: int = 0) -> None:
        self.readings, self._seen = readings, seen

    @property
    def n_samples(self) -> int:
        """How many are set aside."""
        return 0 if self.readings is None else self.readings.logits.shape[0]

    def take(self, readings: Mapping[str, Reading], logits: Tensor) -> Tensor:
        """Set samples of a batch aside; returns which rows `[batch]` to fit on."""
        number = self._seen + torch.arange(logits.shape[0])
        self._seen += logits.shape[0]
        mine = (number % _EVERY == _EVERY - 1) & (number < _EVERY * _MOST)
        if mine.any():
            rows = mine.to(logits.device)
            self.add(Probed(logits[rows], rows_of(readings, rows)))
        return ~mine

    def add(self, more: Optional[Probed]) -> None:
        """Set these samples aside as well."""
        if more is None or self.readings is None:
            self.readings = more if self.readings is None else self.readings
            return
        mine = self.readings
        by_layer = {
            name: Reading(torch.cat([held.activation, more[name].activation.to(held.activation)]))
            for name, held in mine.items()
        }
        logits = torch.cat([mine.logits, more.logits.to(mine.logits)])
        self.readings = Probed(logits, by_layer)

    def tensors(self) -> dict[str, Tensor]:
        """For a file."""
        if self.readings is None:
            return {}
        named = {f"held/activation/{n}": r.activation for n, r in self.readings.items()}
        return {**named, "held/logits": self.readings.logits}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], layers: Mapping[str, object]) -> HeldOut:
        """What `tensors` came from."""
        if "held/logits" not in tensors:
            return cls()
        by_layer = {name: Reading(tensors[f"held/activation/{name}"]) for name in layers}
        return cls(Probed(tensors["held/logits"], by_layer))


def rows_of(readings: Mapping[str, Reading], rows: Tensor) -> dict[str, Reading]:
    """The activations of some samples."""
    return {
        name: Reading(reading.activation[rows.to(reading.activation.device)])
        for name, reading in readings.items()
    }
