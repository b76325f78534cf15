"""Programs of `torch.export` and TorchScript that are damaged, and used as networks."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from random import Random
from typing import Any

import torch
from fuzz_case import IDENTICAL, SILENT, Target
from mutations import mutate_bytes
from torch import nn

from nac_openood.network.probe import classify
from nac_openood.sources.networks import network_of


class Small(nn.Module):
    """Not a Sequential: torch 2.6 cannot load such a program again."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, stride=4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x).relu().mean((2, 3)))


def small() -> Small:
    torch.manual_seed(0)
    return Small().eval()


class Programs(Target):
    """A network in one file; damage is noticed by PyTorch's checksums, or by what fails."""

    name, tried = "programs", "bytes in programs of torch.export and TorchScript"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        net, self.x = small(), torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(1))
        batch = {0: torch.export.Dim("batch")}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(net, (self.x,), dynamic_shapes=({0: batch[0]},))
            torch.export.save(program, folder / "net.pt2")
            torch.jit.save(torch.jit.trace(net, self.x), str(folder / "net.pt"))
        self.expected = {name: self.logits(folder / name) for name in ("net.pt2", "net.pt")}

    def logits(self, path: Path) -> list[list[float]]:
        return classify(network_of(str(path), 3, None), self.x).tolist()

    def case(self, rng: Random, place: Path) -> Any:
        name = rng.choice(sorted(self.expected))
        path = Path(shutil.copy(self.folder / name, place / name))
        mutate_bytes(rng, path)
        found = self.logits(path)
        return IDENTICAL if found == self.expected[name] else (SILENT, f"other logits: {found}")
