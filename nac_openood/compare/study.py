"""What is to be compared, and what identifies each result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

from torch import nn
from torch.utils.data import DataLoader

from nac_openood.bench.checkpoints import Checkpoint
from nac_openood.bench.scorer import Scorer
from nac_openood.bench.sets import ImageSet, ImageSets


@dataclass(frozen=True)
class Study:
    """Methods x checkpoints x image sets.

    Args:
        sets: the images, by role.
        arch: name of the network, for the record.
        network: from a checkpoint to the network, in evaluation mode on its device.
        runs: the checkpoints.
        methods: OpenOOD's names, in the order of the table.
        make: from a method and a checkpoint to its scorer; may raise `Absent`.
        out: the folder of results.
        batch_size: of images.
        workers: processes that load them.
        seed: of everything drawn at random.
        progress: progress bars; None shows them on a terminal.
        command: that makes the same again.
    """

    sets: ImageSets
    arch: str
    network: Callable[[Checkpoint], nn.Module]
    runs: tuple[Checkpoint, ...]
    methods: tuple[str, ...]
    make: Callable[[str, Checkpoint], Scorer]
    out: Path
    batch_size: int = 100
    workers: int = 0
    seed: int = 0
    progress: Optional[bool] = None
    command: str = ""

    def loader(self, images: ImageSet) -> DataLoader[Any]:
        """Batches of images, in order."""
        data: Any = images
        return DataLoader(data, batch_size=self.batch_size, num_workers=self.workers)

    def fitting_sets(self) -> dict[str, ImageSet]:
        """What methods may look at before the test data."""
        found = {"train": self.sets.train, "id_val": self.sets.id_val}
        return found if self.sets.ood_val is None else {**found, "ood_val": self.sets.ood_val}
