"""A few training samples set aside, to calibrate on where nothing else was given.

Which samples these are depends on their numbers in the training set only, so shards and batches may
be merged in any order:

- A sample is a candidate if its number ends in 9, that is, every tenth one is.
- At most `MOST` candidates are kept: those whose number, mixed up by a hash, is smallest. Up to ten
  times as many training samples, all candidates are; beyond that, a uniform choice of them.

Candidates that are not kept, or no longer, are counted like any other sample. Samples with the same
number, from shards that both began at 0, are told apart by their readings.
"""

from __future__ import annotations

import hashlib
from typing import Mapping, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor

from nac_openood.core.reading import Probed, Reading
from nac_openood.core.restoring import stored_values
from nac_openood.errors import NACError

_EVERY = 10
#: So many samples are set aside at most.
MOST = 1000


class Numbered(NamedTuple):
    """Samples with their readings, and their numbers in the training set, int64 `[samples]`."""

    readings: Probed
    number: Tensor

    def rows(self, index: Tensor) -> Numbered:
        """Some of the samples, by whole numbers `[n]`."""
        logits = self.readings.logits[_on(self.readings.logits, index)]
        return Numbered(Probed(logits, rows_of(self.readings, index)), self.number[index])

    def joined(self, more: Numbered) -> Numbered:
        """These samples and `more`, on the device of these."""
        mine = self.readings
        by_layer = {
            name: Reading(torch.cat([held.activation, _like(more.readings[name].activation, held)]))
            for name, held in mine.items()
        }
        logits = torch.cat([mine.logits, more.readings.logits.to(mine.logits)])
        return Numbered(Probed(logits, by_layer), torch.cat([self.number, more.number]))


class HeldOut:
    """The training samples that were set aside, in the order of their numbers.

    They are added to what is fitted as soon as there is real calibration data.
    """

    def __init__(self, kept: Optional[Numbered] = None) -> None:
        self._kept = kept

    @property
    def readings(self) -> Optional[Probed]:
        """What was read of them; None if there are none."""
        return None if self._kept is None else self._kept.readings

    @property
    def n_samples(self) -> int:
        """How many are set aside."""
        return 0 if self._kept is None else len(self._kept.number)

    def take(self, batch: Probed, start: int) -> list[Mapping[str, Reading]]:
        """Set samples of a batch aside.

        Args:
            batch: readings of training samples.
            start: the number of the first one in the training set; the others follow it.

        Returns:
            The readings of everything that is to be counted now.
        """
        number = torch.arange(start, start + batch.logits.shape[0])
        mine = number % _EVERY == _EVERY - 1
        if self.n_samples >= MOST:
            assert self._kept is not None
            mine &= torch.from_numpy(_mixed(number) <= _mixed(self._kept.number).max())
        if not mine.any():
            return [batch]
        rows = mine.nonzero()[:, 0]  # numbers: a GPU cannot select by booleans without waiting
        too_many = self.add(Numbered(batch, number).rows(rows))
        rest = rows_of(batch, (~mine).nonzero()[:, 0])
        return [rest] if too_many is None else [rest, too_many]

    def add(self, more: Optional[Numbered]) -> Optional[Probed]:
        """Set these samples aside as well; returns what is no longer, and to be counted."""
        if more is None:
            return None
        every = more if self._kept is None else self._kept.joined(more)
        order = _order(every)
        dropped = None
        if len(order) > MOST:
            rank = np.argsort(_mixed(every.number[order]), kind="stable")
            keep = np.zeros(len(order), dtype=bool)
            keep[rank[:MOST]] = True
            order, rest = order[keep], order[~keep]
            dropped = every.rows(torch.from_numpy(rest)).readings
        self._kept = every.rows(torch.from_numpy(order))
        return dropped

    def merge(self, other: HeldOut) -> Optional[Probed]:
        """Set aside what another one did; returns what is no longer, and to be counted."""
        return self.add(other._kept)

    def tensors(self) -> dict[str, Tensor]:
        """For a file."""
        if self._kept is None:
            return {}
        readings, number = self._kept
        named = {f"held/activation/{n}": r.activation for n, r in readings.items()}
        return {**named, "held/logits": readings.logits, "held/number": number}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], layers: Mapping[str, object]) -> HeldOut:
        """What `tensors` came from. Early files have no numbers: theirs were the first ones."""
        if "held/logits" not in tensors:
            return cls()
        logits = stored_values(tensors, "held/logits", 2)
        by_layer = {
            name: Reading(stored_values(tensors, f"held/activation/{name}", 2)) for name in layers
        }
        number = tensors.get("held/number", _EVERY * torch.arange(len(logits)) + _EVERY - 1)
        lengths = {len(logits), *(len(reading.activation) for reading in by_layer.values())}
        if lengths != {len(number)} or number.dtype != torch.int64 or number.ndim != 1:
            raise NACError("the samples that were set aside do not fit together.")
        return cls(Numbered(Probed(logits, by_layer), number))


def rows_of(readings: Mapping[str, Reading], rows: Tensor) -> dict[str, Reading]:
    """The activations of some samples, by their numbers, int64 `[rows]` on the CPU."""
    return {
        name: Reading(reading.activation[_on(reading.activation, rows)])
        for name, reading in readings.items()
    }


def _on(tensor: Tensor, rows: Tensor) -> Tensor:
    return rows.to(tensor.device, non_blocking=True)


def _like(activation: Tensor, held: Reading) -> Tensor:
    return activation.to(held.activation)


def _order(samples: Numbered) -> np.ndarray:
    """The samples by number, and those of one number by their readings, int64 `[samples]`."""
    number = samples.number.numpy()
    if len(np.unique(number)) == len(number):
        return np.argsort(number)
    return np.lexsort((_digests(samples.readings), number))


def _digests(readings: Probed) -> np.ndarray:
    """A hash of what was read of each sample, uint64 `[samples]`."""
    parts = [readings.logits, *(readings[name].activation for name in sorted(readings))]
    raw = torch.cat([part.contiguous().view(torch.uint8).cpu() for part in parts], dim=1).numpy()
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in raw]
    return np.frombuffer(b"".join(digests), dtype="<u8")


def _mixed(number: Tensor) -> np.ndarray:
    """Whole numbers `[n]` mixed up, uint64 `[n]`: the finalizer of SplitMix64, one to one."""
    x = number.numpy().astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
