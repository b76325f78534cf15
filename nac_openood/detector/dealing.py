"""Which batches of a loader are for this process; see `nac_openood.distributed`."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Callable, Iterable, Iterator, Optional, TypeVar

import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from nac_openood.detector.batches import Batch, batches
from nac_openood.detector.subset import indexable, loader_like
from nac_openood.distributed import from_main, map_shared, world
from nac_openood.errors import NACError
from nac_openood.progress import bar

_R = TypeVar("_R")


def dealt(loader: Iterable[Any], title: str, progress: Optional[bool]) -> Iterator[Batch]:
    """The batches of this process, and perhaps others.

    Every process gets the first batch, by which it finds layers as one process alone would. Of an
    indexable dataset it gets only its own ones beside that. A stream is read by every process, and
    gives all its batches.
    """
    if world().size > 1 and _has_a_plan(loader):
        yield from _own(loader, title, progress)
        return
    start = 0
    for number, batch in enumerate(batches(bar(loader, title, progress))):
        yield batch._replace(number=number, start=start)
        start += batch.size


def over_batches(step: str, loader: Iterable[Any], work: Callable[[Batch], _R]) -> Iterator[_R]:
    """The results of `work` for all batches in order, whichever process they are made in."""
    own = (batch for batch in dealt(loader, step, progress=False) if batch.mine)
    return map_shared(step, own, work)


def _own(loader: Any, title: str, progress: Optional[bool]) -> Iterator[Batch]:
    plan = planned(loader)
    numbers = needed(len(plan))
    starts = [0, *accumulate(map(len, plan))]
    own = loader_like(loader, plan=[plan[n] for n in numbers])
    for number, batch in zip(numbers, batches(bar(own, title, progress))):
        yield batch._replace(number=number, start=starts[number])


def _has_a_plan(loader: Any) -> bool:
    """Whether the samples of each batch can be known before any of them is loaded."""
    # a class of somebody's may do anything with what it loads
    return indexable(loader) and type(loader).__iter__ is DataLoader.__iter__


def needed(n_batches: int) -> list[int]:
    """The numbers of the batches that this process loads: its own, and the first one."""
    return [n for n in range(n_batches) if n == 0 or world().owns(n)]


def planned(loader: Any) -> list[list[int]]:
    """The samples of each batch. If they are drawn at random, the first process draws."""
    drawn = loader.batch_sampler
    in_order = isinstance(getattr(drawn, "sampler", None), SequentialSampler)
    if isinstance(drawn, list) or (type(drawn) is BatchSampler and in_order):
        return list(drawn)
    if world().detached:
        raise NACError(
            "shards that run on their own need the samples in one fixed order. Make the loader "
            "with shuffle=False."
        )
    return from_main("order of the samples", lambda: _drawn(loader))


def _drawn(loader: Any) -> list[list[int]]:
    """The batches that `iter(loader)` would draw, which draws a seed for its workers as well."""
    order = iter(loader.batch_sampler)
    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
    return list(order)
