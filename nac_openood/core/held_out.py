"""A few training samples that NAC+ is not fitted on, to calibrate on without other data.

Which samples these are depends only on their indices in the training set, so shards and batches may
be merged in any order:

- A sample is a candidate if its index ends in 9, that is, every tenth one is.
- At most `MAX_SAMPLES` candidates are held out: those whose index has the smallest hash. Of a
  larger training set this is a uniform choice; of a small one, all candidates are held out.

Candidates that are not, or no longer, held out are counted like any other sample. Samples with the
same index, from shards that both began at 0, are ordered by their readings.
"""

from __future__ import annotations

import hashlib
from typing import Mapping, Optional

import numpy as np
import torch
from torch import Tensor

from nac_openood.core.reading import Probed, Reading
from nac_openood.core.tensors import stored_values
from nac_openood.errors import NACError

_EVERY = 10
#: The largest number of samples that are held out.
MAX_SAMPLES = 1000
#: Names of the tensors in a file: the activations of each layer, the logits and the indices.
_ACTIVATION, _LOGITS, _INDEX = "held/activation/", "held/logits", "held/number"


class HeldOut:
    """The training samples that are held out, in the order of their indices.

    They are counted with the others as soon as there is real calibration data.

    Attributes:
        tensors: their readings and indices, for a file; empty if there are none.
    """

    def __init__(self, tensors: Optional[Mapping[str, Tensor]] = None) -> None:
        self.tensors = dict(tensors or {})

    @property
    def readings(self) -> Optional[Probed]:
        """Their readings; None if there are none."""
        return _readings(self.tensors) if self.tensors else None

    @property
    def n_samples(self) -> int:
        """How many there are."""
        return len(self.tensors[_INDEX]) if self.tensors else 0

    def take(self, batch: Probed, start: int) -> list[Probed]:
        """Hold out samples of a batch.

        Args:
            batch: readings of training samples.
            start: the index of the first one in the training set; the others follow it.

        Returns:
            The readings of the samples to count now.
        """
        index = torch.arange(start, start + batch.logits.shape[0])
        candidates = index % _EVERY == _EVERY - 1
        if self.n_samples >= MAX_SAMPLES:
            candidates &= torch.from_numpy(_hashed(index) <= _hashed(self.tensors[_INDEX]).max())
        if not candidates.any():
            return [batch]
        named = {f"{_ACTIVATION}{name}": reading.activation for name, reading in batch.items()}
        samples = {**named, _LOGITS: batch.logits, _INDEX: index}
        # rows by their numbers: a GPU cannot select by booleans without waiting
        dropped = self.merge(_rows(samples, candidates.nonzero()[:, 0]))
        return [_readings(_rows(samples, (~candidates).nonzero()[:, 0])), *dropped]

    def merge(self, more: Mapping[str, Tensor]) -> list[Probed]:
        """Add the `tensors` of another `HeldOut`; returns the readings of samples to count now."""
        if not more:
            return []
        # on the device of the new samples
        samples = {
            name: torch.cat([kept.to(more[name].device), more[name].to(kept.dtype)])
            for name, kept in self.tensors.items()
        } or dict(more)
        order = _order(samples)
        dropped = []
        if len(order) > MAX_SAMPLES:
            rank = np.argsort(_hashed(samples[_INDEX][order]), kind="stable")
            keep = np.zeros(len(order), dtype=bool)
            keep[rank[:MAX_SAMPLES]] = True
            dropped = [_readings(_rows(samples, torch.from_numpy(order[~keep])))]
            order = order[keep]
        self.tensors = _rows(samples, torch.from_numpy(order))
        return dropped

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], layers: Mapping[str, object]) -> HeldOut:
        """Restore from `tensors`. Early files have no indices: they held out the first ones."""
        if _LOGITS not in tensors:
            return cls()
        names = [*(f"{_ACTIVATION}{name}" for name in layers), _LOGITS]
        kept = {name: stored_values(tensors, name, 2) for name in names}
        first = _EVERY * torch.arange(len(kept[_LOGITS])) + _EVERY - 1
        index = tensors.get(_INDEX, first)
        lengths = {len(tensor) for tensor in kept.values()}
        if lengths != {len(index)} or index.dtype != torch.int64 or index.ndim != 1:
            raise NACError("the tensors of the held-out samples do not fit together.")
        return cls({**kept, _INDEX: index})


def _readings(samples: Mapping[str, Tensor]) -> Probed:
    by_layer = {
        name[len(_ACTIVATION) :]: Reading(tensor)
        for name, tensor in samples.items()
        if name.startswith(_ACTIVATION)
    }
    return Probed(samples[_LOGITS], by_layer)


def _rows(samples: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Some of the samples, by whole numbers `[rows]` on the CPU."""
    return {n: tensor[rows.to(tensor.device, non_blocking=True)] for n, tensor in samples.items()}


def _order(samples: Mapping[str, Tensor]) -> np.ndarray:
    """The samples by index, and those of one index by their readings, int64 `[samples]`."""
    index = samples[_INDEX].numpy()
    if len(np.unique(index)) == len(index):
        return np.argsort(index)
    names = [_LOGITS, *sorted(name for name in samples if name.startswith(_ACTIVATION))]
    raw = [samples[name].contiguous().view(torch.uint8).cpu() for name in names]
    digests = [
        hashlib.blake2b(row.tobytes(), digest_size=8).digest()
        for row in torch.cat(raw, dim=1).numpy()
    ]
    return np.lexsort((np.frombuffer(b"".join(digests), dtype="<u8"), index))


def _hashed(index: Tensor) -> np.ndarray:
    """Hash whole numbers `[n]` to uint64 `[n]`, one to one: the finalizer of SplitMix64."""
    x = index.numpy().astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
