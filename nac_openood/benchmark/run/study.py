"""What is compared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Callable, Iterable, Optional, Union

from torch import nn

from nac_openood.benchmark.methods.scorer import Scorer
from nac_openood.benchmark.methods.table import Method
from nac_openood.errors import NACError
from nac_openood.search.surrogate import SurrogateLoader
from nac_openood.sources.checkpoints import Checkpoint
from nac_openood.sources.samples import Samples
from nac_openood.sources.sets import Datasets


class Surrogates:
    """Surrogate OOD samples made from ID validation data, one for each of its samples."""

    def __init__(self, inside: Samples, seed: int) -> None:
        self._inside, self._seed = inside, seed

    def __len__(self) -> int:
        return len(self._inside)

    def loader(self) -> Iterable[Any]:
        """Batches of all samples, in order."""
        return SurrogateLoader(self._inside.loader(), seed=self._seed)

    @property
    def identity(self) -> str:
        """A text that is equal for equal samples only."""
        return f"surrogates of {self._inside.identity}, seed {self._seed}"


@dataclass(frozen=True)
class Study:
    """Methods x networks x datasets.

    Args:
        sets: the datasets by role.
        arch: name of the network, for the record.
        network: returns the network of a run, on its device.
        runs: name and checkpoint of each network.
        methods: rows of the method table, in the order of the results.
        make: makes the scorer of a method for a run; may raise `Absent`.
        out: folder of the results.
        search: whether methods search their hyperparameters on validation data.
        reuse: whether `out` may hold results of an earlier run.
        batch_size: samples per batch.
        workers: number of processes that load samples.
        seed: random seed.
        progress: whether to show progress bars; None shows them on a terminal.
        command: the command that repeats the comparison.
    """

    sets: Datasets
    arch: str
    network: Callable[[Checkpoint], nn.Module]
    runs: tuple[Checkpoint, ...]
    methods: tuple[Method, ...]
    make: Callable[[Method, Checkpoint], Scorer]
    out: Path
    search: bool = True
    reuse: bool = True
    batch_size: int = 100
    workers: int = 0
    seed: int = 0
    progress: Optional[bool] = None
    command: str = ""

    @cached_property
    def fitting(self) -> dict[str, Union[Samples, Surrogates]]:
        """What methods may look at before the test data, by name."""
        id_val = self._samples("id_val", self.sets.id_val)
        found = {"train": self._samples("train", self.sets.train), "id_val": id_val}
        if self.surrogates:
            return {**found, "ood_val": Surrogates(id_val, self.seed)}
        if self.search:
            return {**found, "ood_val": self._samples("ood_val", self.sets.ood_val)}
        return {**found}

    @cached_property
    def scored(self) -> dict[str, Samples]:
        """The test sets by name, in the order of `sets.roles()`."""
        return {name: self._samples(name, data) for name, data in self.sets.scored().items()}

    @property
    def surrogates(self) -> bool:
        """Whether hyperparameters are searched against surrogates of OOD data."""
        return self.search and self.sets.ood_val is None

    def check(self) -> None:
        """Refuse what cannot work, before the long part.

        Raises:
            NACError: there is no OOD test set, a label of ID data is no class, or surrogates
                cannot be made from the data.
        """
        if not self.sets.near and not self.sets.far:
            raise NACError("expected at least one OOD test set: pass `near`, `far` or both.")
        known = {**self.fitting, **self.scored}
        for name in ("train", "id_val", "test", *self.sets.shifted):
            samples = known[name]
            assert isinstance(samples, Samples)
            samples.check_labels(self.sets.n_classes)
        if self.surrogates:
            next(iter(self.fitting["ood_val"].loader()))

    def _samples(self, name: str, data: Any) -> Samples:
        return Samples(
            name, data, batch_size=self.batch_size, workers=self.workers, progress=self.progress
        )
