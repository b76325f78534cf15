"""Features, logits and labels of a loader, on which detectors are fitted."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, NamedTuple

import torch
from torch import Tensor, nn

from nac_openood.detector.batches import batches
from nac_openood.errors import NACError, some
from nac_openood.network.inputs import prepare


class Gathered(NamedTuple):
    """Features or logits `[samples, ...]` on the CPU and labels int64 `[samples]`."""

    values: Tensor
    label: Tensor


def labelled(net: nn.Module, loader: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches as `net` takes them, and their labels on the CPU, -1 if there are none."""
    for batch in batches(loader):
        yield prepare(net, batch.data), batch.labels()


@torch.no_grad()
def map_batches(head: nn.Module, loader: Iterable[Any], of: Callable[[Tensor], Tensor]) -> Gathered:
    """Apply `of` to every batch and join the results, without ever holding them twice."""
    parts, labels = [], []
    for x, label in labelled(head, loader):
        parts.append(of(x).detach().float().cpu())
        labels.append(label)
    whole = torch.empty((sum(map(len, parts)), *parts[0].shape[1:]), dtype=parts[0].dtype)
    start = 0
    for i, part in enumerate(parts):
        whole[start : start + len(part)] = part
        start += len(part)
        parts[i] = part[:0].clone()  # the memory of `whole` is only taken up as it is filled
    return Gathered(whole, torch.cat(labels))


def features(head: nn.Module, loader: Iterable[Any]) -> Gathered:
    """The features `[samples, D]` that a loader yields."""
    return map_batches(head, loader, lambda x: x)


def logits(head: nn.Module, loader: Iterable[Any]) -> Gathered:
    """The logits `[samples, classes]` of a loader's features."""
    return map_batches(head, loader, head)


def every_class(method: str, label: Tensor, n_classes: int, what: str = "sample") -> None:
    """Check that every class from 0 to n_classes - 1 has a training label.

    Raises:
        NACError: naming the classes.
    """
    missing = sorted(set(range(n_classes)) - set(label.unique().tolist()))
    if missing:
        raise NACError(
            f"{method} needs at least one training {what} of every class; there is none of "
            f"{some(missing)}. Give it more training data, or leave it out of `methods`."
        )
