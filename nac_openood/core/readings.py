"""Readings of a whole data set, kept: fit, score and search again without the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Iterator, Mapping, Optional

import torch
from torch import Tensor

from nac_openood.core import files
from nac_openood.core.coverage import not_finite
from nac_openood.core.probe import Reading
from nac_openood.core.spool import Spool
from nac_openood.errors import NACError

_KIND, _VERSION = "nac_openood readings", 1


@dataclass(frozen=True)
class Readings(Mapping[str, Reading]):
    """A mapping of layer name to `Reading` `[samples, neurons]`, with the samples' answers.

    Args:
        layers: readings by layer name.
        prediction: int64 `[samples]`, the network's class.
        label: int64 `[samples]`, -1 where unknown.
    """

    layers: Mapping[str, Reading]
    prediction: Tensor
    label: Tensor

    def __getitem__(self, name: str) -> Reading:
        return self.layers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def n_samples(self) -> int:
        """How many samples were read."""
        return self.prediction.shape[0]

    def batches(self, size: int = 1000) -> Iterator[dict[str, Reading]]:
        """The readings in slices of `size` samples, so that work on them stays small."""
        for start in range(0, self.n_samples, size):
            rows = slice(start, start + size)
            yield {n: Reading(r.activation[rows], r.gradient[rows]) for n, r in self.items()}

    def check_finite(self, what: str, layers: Optional[Iterable[str]] = None) -> None:
        """Refuse NaN and Inf, which no setting can rank; `what` the samples are, for the error."""
        names = list(self if layers is None else layers)
        broken = dict.fromkeys(names, 0)
        for part in self.batches():
            for name in names:
                broken[name] += int(not_finite(*part[name]).sum())
        for name, count in broken.items():
            if count:
                raise NACError(
                    f"layer '{name}': {count} of {self.n_samples} {what} samples have NaN or Inf "
                    "readings. Check the inputs (normalization, corrupt images) and the precision."
                )

    def save(self, path: files.PathLike) -> None:
        """Write a safetensors file that `load` maps into memory instead of reading it whole."""
        files.write(path, _KIND, _VERSION, self._tensors(), {"layers": list(self)})

    @classmethod
    def save_parts(cls, path: files.PathLike, parts: Iterable[Readings]) -> Readings:
        """Write readings as they come, one part in memory at a time, and map the file.

        The same as `Readings.concatenate(parts).save(path)`, for sets that do not fit in memory.
        """
        layers: list[str] = []
        with Spool(path) as spool:
            for part in parts:
                layers = list(part)
                spool.add(part._tensors())
            if not layers:
                raise NACError("there are no readings to join: the loader yielded no batch.")
            spool.finish(_KIND, _VERSION, {"layers": layers})
        return cls.load(path)

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {"prediction": self.prediction, "label": self.label}
        for name, reading in self.items():
            tensors[f"activation/{name}"] = reading.activation
            tensors[f"gradient/{name}"] = reading.gradient
        return tensors

    @classmethod
    def load(cls, path: files.PathLike) -> Readings:
        """Map what `save` wrote: tensors are read from disk as they are used, never whole."""
        tensors, about = files.read(path, _KIND, _VERSION)
        layers = {
            name: Reading(tensors[f"activation/{name}"], tensors[f"gradient/{name}"])
            for name in about["layers"]
        }
        return cls(layers, tensors["prediction"], tensors["label"])

    @classmethod
    def concatenate(cls, parts: list[Readings]) -> Readings:
        """Join readings of the same layers, in order."""
        if not parts:
            raise NACError("there are no readings to join: the loader yielded no batch.")
        layers = {
            name: Reading(*(torch.cat(tensors) for tensors in zip(*(p[name] for p in parts))))
            for name in parts[0]
        }
        prediction, label = (
            torch.cat([p.prediction for p in parts]),
            torch.cat([p.label for p in parts]),
        )
        return cls(layers, prediction, label)
