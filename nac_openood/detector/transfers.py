"""Copies to and from a GPU that run while it works.

The CPU only queues the work of a GPU, so it has time to load the next batch meanwhile. That holds
as long as nothing makes it wait for a result. An ordinary copy does, so batches are copied from
pinned memory on a stream of their own, and readings are looked at one batch later. On CPUs, all of
this does nothing. The numbers are the same everywhere.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any, Iterable, Iterator, Optional

import torch
from torch import Tensor, nn

from nac_openood.detector.batches import Batch
from nac_openood.detector.readings import Readings
from nac_openood.network.inputs import device_of, mapped

#: How many batches lie on the device at once: the one it works on, and the next.
_DEPTH = 2


def ahead(batches: Iterable[Batch], net: nn.Module) -> Iterator[Batch]:
    """Batches with their data on the network's GPU, copied while it works on the one before.

    Args:
        batches: from a loader.
        net: the network. If it is not on a CUDA device, batches are passed on as they are.
    """
    device = device_of(net)
    streams = _streams(device)
    if streams is None:
        yield from batches
        return
    copying = streams.Stream(device)
    working: deque[Any] = deque()
    for batch in batches:
        here = streams.current_stream(device)
        with streams.stream(copying):
            moved = batch._replace(data=mapped(batch.data, partial(_copied, device, here)))
        here.wait_stream(copying)
        yield moved
        done = streams.Event()
        done.record(streams.current_stream(device))
        working.append(done)
        # or a fast loader would fill the device's memory with batches that have to wait
        if len(working) == _DEPTH:
            working.popleft().synchronize()


def behind(parts: Iterable[Readings]) -> Iterator[Readings]:
    """Readings on the CPU, each of them looked at when the device has got its next batch.

    Args:
        parts: readings wherever the network is.
    """
    before: Optional[tuple[Readings, Any]] = None
    for part in parts:
        streams = _streams(part.prediction.device)
        if streams is None:
            yield part.cpu()
            continue
        copy = part.to(torch.device("cpu"), non_blocking=True)  # into pinned memory
        done = streams.Event()
        done.record(streams.current_stream(part.prediction.device))
        if before is not None:
            yield _arrived(*before)
        before = copy, done
    if before is not None:
        yield _arrived(*before)


def _arrived(copy: Readings, done: Any) -> Readings:
    done.synchronize()
    return copy.clone()  # pinned memory is scarce, and needed for the next batch


def _copied(device: torch.device, stream: Any, tensor: Tensor) -> Tensor:
    """A tensor on the device, made on the current stream to be used on another."""
    if tensor.device == device:
        return tensor
    if device.type != "cuda":
        return tensor.to(device, non_blocking=True)
    copy = tensor.pin_memory() if tensor.device.type == "cpu" else tensor
    copy = copy.to(device, non_blocking=True)
    copy.record_stream(stream)  # its memory is in use until the pass is over
    return copy


def _streams(device: torch.device) -> Any:
    """The module with the streams and events of a device; None if it has none."""
    return torch.cuda if device.type == "cuda" else None
