"""A small network as programs of `torch.export` and TorchScript."""

import warnings
from pathlib import Path

import torch
from torch import nn


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


def write_programs(folder: Path, x: torch.Tensor) -> None:
    """Write `net.pt2` and `traced.pt`, which take batches like `x`."""
    net = small()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shapes = ({0: torch.export.Dim("batch")},)
        torch.export.save(torch.export.export(net, (x,), dynamic_shapes=shapes), folder / "net.pt2")
        torch.jit.save(torch.jit.trace(net, x), str(folder / "traced.pt"))
