"""Share work among the processes that `torchrun` starts, batch by batch.

Processes take whole batches in turn, without padding: floating-point results depend on the
composition of a batch, so batches are never regrouped. Counts are added up as integers and results
are put in the order of the data, so every process ends with exactly what one process would compute.

Outside `joined()` nothing is shared: a job that trains with several processes may fit a detector
in just one of them.
"""

from __future__ import annotations

import atexit
import os
from contextlib import contextmanager
from itertools import islice
from typing import Any, Callable, ContextManager, Iterable, Iterator, NamedTuple, TypeVar

from nac_openood.errors import NACError, error_text

_T = TypeVar("_T")
_R = TypeVar("_R")


class World(NamedTuple):
    """Which process this is, and how many there are.

    Args:
        rank: number of this process, from 0 on.
        size: number of processes.
        detached: whether they are shards that run on their own, perhaps not at the same time.
    """

    rank: int = 0
    size: int = 1
    detached: bool = False

    @property
    def connected(self) -> bool:
        """Whether there are others to exchange results with."""
        return self.size > 1 and not self.detached

    def owns(self, number: int) -> bool:
        """Whether this process works on the batch with this number."""
        return number % self.size == self.rank


_world = World()
_shared: BaseException | None = None


def world() -> World:
    """The processes that work together now; one, outside `joined()`."""
    return _world


def is_main() -> bool:
    """Whether this process writes files and prints: the first, or one that runs on its own."""
    return _world.rank == 0 or _world.detached


def launched() -> bool:
    """Whether `torchrun` started this process as one of several."""
    size = os.environ.get("WORLD_SIZE", "1")
    return "RANK" in os.environ and size.isdigit() and int(size) > 1


@contextmanager
def joined() -> Iterator[World]:
    """Let all processes of the job work together in a block that each of them enters.

    Uses the default process group if there is one; otherwise it is created from the variables that
    `torchrun` sets, and stays until the process ends: NCCL for tensors on GPUs, Gloo for others.
    Each process uses the GPU of its local rank. Without other processes nothing happens.

    Examples:
        >>> with nac_openood.distributed.joined():  # in a script that torchrun starts
        ...     det.fit(train_loader).calibrate(val_loader)
        ...     scores = det.score_loader(test_loader)  # of all samples, in every process
    """
    import torch
    import torch.distributed as dist

    available = dist.is_available()
    if available and launched() and not dist.is_initialized():
        backend = "gloo"
        if torch.cuda.is_available():
            local_rank = int(os.environ.get("LOCAL_RANK", "0"))
            torch.cuda.set_device(local_rank % torch.cuda.device_count())
            if dist.is_nccl_available():
                backend = "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend)
        # not when the block ends: a second group at the same address might fail to connect
        atexit.register(dist.destroy_process_group)
    initialized = available and dist.is_initialized()
    here = World(dist.get_rank(), dist.get_world_size()) if initialized else World()
    with _set_world(here):
        yield here


def as_shard(rank: int, size: int) -> ContextManager[None]:
    """Process one shard of every loader, as process `rank` of `size` that run on their own.

    The results are merged later; see `nac_openood.detector.checked_fit`.
    """
    return _set_world(World(rank, size, detached=True))


class ShardResult(NamedTuple):
    """The result of a shard, from a file.

    Args:
        path: of the file or folder.
        number: number of the shard, from 1 on.
        of: number of shards.
        run: what all shards of a run have in common.
        content: what is to be merged.
    """

    path: Any
    number: int
    of: int
    run: Any
    content: Any


def ordered_shards(shards: Iterable[ShardResult]) -> list[ShardResult]:
    """Sort the shards of a run, and check that they are complete.

    Raises:
        NACError: they are of different runs, or one is missing or repeated.
    """
    found = sorted(shards, key=lambda shard: shard.number)
    first = found[0]
    for other in found:
        if (other.run, other.of) != (first.run, first.of):
            raise NACError(
                f"{other.path} and {first.path} are shards of different runs: network, data and "
                "options must be the same."
            )
    numbers = [shard.number for shard in found]
    if numbers != list(range(1, first.of + 1)):
        raise NACError(
            f"expected each of the shards 1 to {first.of} once, got {numbers}. Pass all of them."
        )
    return found


@contextmanager
def _set_world(here: World) -> Iterator[None]:
    global _world
    before, _world = _world, here
    try:
        yield
    finally:
        _world = before


def was_shared(error: BaseException) -> bool:
    """Whether all processes have this error, so that one of them can report it."""
    return error is _shared


def all_gather(step: str, value: Any, error: Exception | None = None) -> list[Any]:
    """The values of all processes, in the order of their ranks; tensors come back on the CPU.

    Args:
        step: name of the step. All processes must be at the same one.
        value: the value of this process.
        error: the error of this process, if any; it becomes an error of all processes.

    Raises:
        NACError: a process had an error, is at another step, or has ended.
    """
    global _shared
    if not _world.connected:
        if error is not None:
            raise error
        return [value]
    import torch.distributed as dist
    from torch.utils._pytree import tree_map

    def on_cpu(leaf: Any) -> Any:
        return leaf.cpu() if hasattr(leaf, "cpu") else leaf

    value, failure = _attempt(lambda: tree_map(on_cpu, value))  # a GPU's errors may come late
    error = error or failure
    found: list[Any] = [None] * _world.size
    try:
        dist.all_gather_object(found, (step, value, None if error is None else error_text(error)))
    except RuntimeError as lost:  # Gloo's and NCCL's errors when a connection is lost
        raise NACError(
            "another process of this job has ended. Its own error, if there was time to print it, "
            "is above or in its log."
        ) from lost
    failed = [f"{why} (process {n})" for n, (_, _, why) in enumerate(found) if why is not None]
    steps = [step for step, _, _ in found]
    if len(set(steps)) > 1:
        failed.append(f"the processes are out of step: they are at {steps}.")
    if failed:
        _shared = error or NACError(failed[0])
        raise _shared from None
    return [value for _, value, _ in found]


def from_main(step: str, make: Callable[[], _T]) -> _T:
    """Call `make` in the first process, and return its result in all of them."""
    found: _T = all_gather(step, *(_attempt(make) if is_main() else (None, None)))[0]
    return found


def _attempt(work: Callable[[], _T]) -> tuple[_T | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


@contextmanager
def synchronized(step: str) -> Iterator[None]:
    """Make an error in the block an error of all processes, so that none waits for another."""
    try:
        yield
    except Exception as error:
        if not was_shared(error):
            all_gather(step, None, error)
        raise
    all_gather(step, None)


def map_shared(step: str, own: Iterator[_T], work: Callable[[_T], _R]) -> Iterator[_R]:
    """Results for all batches in order, in every process; each process works on its own batches.

    Args:
        step: name of the step.
        own: the batches of this process: every `size`-th batch, starting at `rank`.
        work: makes the result for a batch. An error in one process becomes an error in all of
            them.
    """
    if not _world.connected:
        yield from map(work, own)
        return
    while True:
        done, error = _attempt(lambda: [work(item) for item in islice(own, 1)])
        results = [result for part in all_gather(step, done, error) for result in part]
        yield from results
        if len(results) < _world.size:
            return
