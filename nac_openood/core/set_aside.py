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
from typing import Mapping, Optional

import numpy as np
import torch
from torch import Tensor

from nac_openood.core.reading import Probed, Reading
from nac_openood.core.restoring import stored_values
from nac_openood.errors import NACError

_EVERY = 10
#: So many samples are set aside at most.
MOST = 1000
#: What is kept of them, under the names of a file: the layers' activations, logits and numbers.
_ACTIVATION, _LOGITS, _NUMBER = "held/activation/", "held/logits", "held/number"


class SetAside:
    """The training samples that were set aside, in the order of their numbers.

    They are added to what is fitted as soon as there is real calibration data.

    Args:
        kept: what `tensors` gives; empty if there are none.
    """

    def __init__(self, kept: Optional[Mapping[str, Tensor]] = None) -> None:
        self._kept = dict(kept or {})

    @property
    def readings(self) -> Optional[Probed]:
        """What was read of them; None if there are none."""
        return _readings(self._kept) if self._kept else None

    @property
    def n_samples(self) -> int:
        """How many are set aside."""
        return len(self._kept[_NUMBER]) if self._kept else 0

    def take(self, batch: Probed, start: int) -> list[Probed]:
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
            mine &= torch.from_numpy(_mixed(number) <= _mixed(self._kept[_NUMBER]).max())
        if not mine.any():
            return [batch]
        every = _tensors(batch, number)
        # rows by their numbers: a GPU cannot select by booleans without waiting
        dropped = self._add(_rows(every, mine.nonzero()[:, 0]))
        return [_readings(_rows(every, (~mine).nonzero()[:, 0])), *dropped]

    def merge(self, other: SetAside) -> list[Probed]:
        """Set aside what another one did; returns what is no longer, and to be counted."""
        return self._add(other._kept)

    def _add(self, more: Mapping[str, Tensor]) -> list[Probed]:
        if not more:
            return []
        every = _joined(self._kept, more) if self._kept else more
        order = _order(every)
        dropped = []
        if len(order) > MOST:
            rank = np.argsort(_mixed(every[_NUMBER][order]), kind="stable")
            keep = np.zeros(len(order), dtype=bool)
            keep[rank[:MOST]] = True
            dropped = [_readings(_rows(every, torch.from_numpy(order[~keep])))]
            order = order[keep]
        self._kept = _rows(every, torch.from_numpy(order))
        return dropped

    def tensors(self) -> dict[str, Tensor]:
        """For a file."""
        return dict(self._kept)

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], layers: Mapping[str, object]) -> SetAside:
        """What `tensors` came from. Early files have no numbers: theirs were the first ones."""
        if _LOGITS not in tensors:
            return cls()
        names = [*(f"{_ACTIVATION}{name}" for name in layers), _LOGITS]
        kept = {name: stored_values(tensors, name, 2) for name in names}
        first = _EVERY * torch.arange(len(kept[_LOGITS])) + _EVERY - 1
        number = tensors.get(_NUMBER, first)
        lengths = {len(tensor) for tensor in kept.values()}
        if lengths != {len(number)} or number.dtype != torch.int64 or number.ndim != 1:
            raise NACError("the samples that were set aside do not fit together.")
        return cls({**kept, _NUMBER: number})


def _tensors(readings: Probed, number: Tensor) -> dict[str, Tensor]:
    named = {f"{_ACTIVATION}{name}": reading.activation for name, reading in readings.items()}
    return {**named, _LOGITS: readings.logits, _NUMBER: number}


def _readings(kept: Mapping[str, Tensor]) -> Probed:
    by_layer = {name[len(_ACTIVATION) :]: Reading(kept[name]) for name in _activations(kept)}
    return Probed(kept[_LOGITS], by_layer)


def _activations(kept: Mapping[str, Tensor]) -> list[str]:
    return [name for name in kept if name.startswith(_ACTIVATION)]


def _rows(kept: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Some of the samples, by whole numbers `[rows]` on the CPU."""
    return {n: tensor[rows.to(tensor.device, non_blocking=True)] for n, tensor in kept.items()}


def _joined(kept: Mapping[str, Tensor], more: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Samples and more of them, on the device of the latter: of those that are being read."""
    return {
        name: torch.cat([tensor.to(more[name].device), more[name].to(tensor.dtype)])
        for name, tensor in kept.items()
    }


def _order(kept: Mapping[str, Tensor]) -> np.ndarray:
    """The samples by number, and those of one number by their readings, int64 `[samples]`."""
    number = kept[_NUMBER].numpy()
    if len(np.unique(number)) == len(number):
        return np.argsort(number)
    return np.lexsort((_digests(kept), number))


def _digests(kept: Mapping[str, Tensor]) -> np.ndarray:
    """A hash of what was read of each sample, uint64 `[samples]`."""
    parts = [kept[name] for name in (_LOGITS, *sorted(_activations(kept)))]
    raw = torch.cat([part.contiguous().view(torch.uint8).cpu() for part in parts], dim=1).numpy()
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in raw]
    return np.frombuffer(b"".join(digests), dtype="<u8")


def _mixed(number: Tensor) -> np.ndarray:
    """Whole numbers `[n]` mixed up, uint64 `[n]`: the finalizer of SplitMix64, one to one."""
    x = number.numpy().astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
