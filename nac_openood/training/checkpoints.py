"""Keep the checkpoints of a training run as files."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from nac_openood.files import PathLike, make_folder, write_weights
from nac_openood.network.replica import unwrap


class SaveCheckpoints:
    """Saves a network's state dict after so many steps, for `train(on_checkpoint=...)`.

    Files are called `step_00300.pt` and so on, so that their names sort by step, and are written
    whole or not at all. `nac-openood rank` reads them.

    Args:
        folder: created if it does not exist.

    Attributes:
        paths: the files written so far, by step.
    """

    def __init__(self, folder: PathLike) -> None:
        self.folder = make_folder(folder)
        self.paths: dict[int, Path] = {}

    def __call__(self, step: int, net: nn.Module) -> None:
        """Save the network, without its DataParallel, DDP or torch.compile wrapper."""
        path = self.folder / f"step_{step:05d}.pt"
        self.paths[step] = write_weights(path, unwrap(net))
