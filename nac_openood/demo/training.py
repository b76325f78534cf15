"""Trains small networks on the digits of the embedded benchmark, in seconds on a CPU."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import Iterator, Mapping, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nac_openood.demo.embedded import N_CLASSES, digit_splits
from nac_openood.errors import NACError
from nac_openood.network.random_state import kept_random_state
from nac_openood.progress import bar
from nac_openood.sources.networks import build

_BATCH = 64
_SHIFT = 3  # less than a pixel of the original 8x8 images


@dataclass(frozen=True)
class Recipe:
    """Number of epochs, learning rate and weight decay."""

    epochs: int
    rate: float
    decay: float = 0.05


#: The networks that can be trained here, by their name for `networks.build`.
RECIPES: Mapping[str, Recipe] = {
    "resnet_embedded": Recipe(epochs=15, rate=3e-3),
    "vit_embedded": Recipe(epochs=40, rate=3e-3),
}


def recipe_of(arch: str) -> Recipe:
    """The recipe of a network, or an error that lists the known ones."""
    if arch not in RECIPES:
        raise NACError(
            f"there is no recipe to train '{arch}' on the embedded benchmark, only for "
            f"{', '.join(RECIPES)}. Train it yourself and pass the network to `compare`."
        )
    return RECIPES[arch]


def train_embedded(
    arch: str, *, seed: int = 0, epochs: Optional[int] = None, progress: Optional[bool] = None
) -> nn.Module:
    """Train a network on digits 0 to 7; the caller's random state is kept.

    Args:
        arch: `resnet_embedded` or `vit_embedded`.
        seed: random seed; on processors of one kind, equal seeds give equal weights.
        epochs: number of epochs; None takes the recipe's.
        progress: whether to show a progress bar; None shows it on a terminal.

    Returns:
        The network, in evaluation mode.
    """
    recipe = recipe_of(arch)
    digits = digit_splits()["train"]
    images, labels = digits.tensors, torch.from_numpy(digits.labels)
    epochs = recipe.epochs if epochs is None else epochs
    with kept_random_state(seed), _one_thread():
        net = build(arch, N_CLASSES).train()
        steps = epochs * -(-len(images) // _BATCH)
        optimizer = torch.optim.AdamW(net.parameters(), recipe.rate, weight_decay=recipe.decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.rate, max(steps, 1))
        for _ in bar(range(epochs), f"training {arch}", progress):
            for rows in torch.randperm(len(images)).split(_BATCH):
                optimizer.zero_grad()
                F.cross_entropy(net(_shifted(images[rows])), labels[rows]).backward()
                optimizer.step()
                schedule.step()
    return net.eval()


@contextmanager
def _one_thread() -> Iterator[None]:
    """How sums are rounded depends on the number of threads; weights must not."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _shifted(images: Tensor) -> Tensor:
    """The batch moved by up to three pixels; the border is filled with background."""
    padded = F.pad(images, (_SHIFT,) * 4, value=float(images.amin()))
    down, right = torch.randint(0, 2 * _SHIFT + 1, (2,)).tolist()
    height, width = images.shape[2:]
    return padded[:, :, down : down + height, right : right + width]
