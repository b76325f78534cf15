"""Several processes as one: what `torchrun` starts shares the work batch by batch.

Whole batches go to the processes in turn, without padding: how a batch is rounded depends on what
is in it, so batches stay what they are. Counts are added up as integers and results are put in the
order of the data, so every process ends with what one process alone would have, to the bit.

Nothing here does anything outside `joined()`: a job that trains with several processes may fit a
detector in just one of them.
"""

from __future__ import annotations

import atexit
import os
from contextlib import contextmanager
from itertools import islice
from typing import Any, Callable, ContextManager, Iterator, Mapping, NamedTuple, Sequence, TypeVar

from nac_openood.errors import NACError, error_text

_T = TypeVar("_T")
_R = TypeVar("_R")


class World(NamedTuple):
    """Which process this is, and how many there are.

    Args:
        rank: from 0 on.
        size: how many there are.
        apart: whether they run on their own, perhaps not at the same time.
    """

    rank: int = 0
    size: int = 1
    apart: bool = False

    @property
    def connected(self) -> bool:
        """Whether there are others to exchange results with."""
        return self.size > 1 and not self.apart

    def owns(self, number: int) -> bool:
        """Whether the batch with this number is for this process."""
        return number % self.size == self.rank


_world = World()
_shared: BaseException | None = None


def world() -> World:
    """The processes that work together now; one, outside `joined()`."""
    return _world


def is_main() -> bool:
    """Whether this process is the one that writes files and prints: the first, or the only one."""
    return _world.rank == 0 or _world.apart


def launched() -> bool:
    """Whether `torchrun` started this process beside others."""
    size = os.environ.get("WORLD_SIZE", "1")
    return "RANK" in os.environ and size.isdigit() and int(size) > 1


@contextmanager
def joined() -> Iterator[World]:
    """Let all processes of the job work together in a block that each of them enters.

    Uses the default process group if there is one; otherwise it is made from what `torchrun` sets,
    and stays until the process ends: NCCL for tensors on GPUs, Gloo for others. Each process uses
    the GPU of its local rank. Without other processes nothing happens.

    Examples:
        >>> with nac_openood.distributed.joined():  # in a script that torchrun starts
        ...     det.fit(train_loader).calibrate(val_loader)
        ...     scores = det.score_loader(test_loader)  # of all samples, in every process
    """
    import torch.distributed as dist

    if launched() and not (dist.is_available() and dist.is_initialized()):
        _start()
    here = World()
    if dist.is_available() and dist.is_initialized():
        here = World(dist.get_rank(), dist.get_world_size())
    with _as(here):
        yield here


def one_share(rank: int, size: int) -> ContextManager[None]:
    """Work on one share of every loader, as process `rank` of `size` that run on their own.

    What comes out is merged later; see `nac_openood.detector.shards`.
    """
    return _as(World(rank, size, apart=True))


def check_shards(numbers: Sequence[int], of: int) -> None:
    """Refuse anything but each of the shards 1 to `of` once, in order."""
    if list(numbers) != list(range(1, of + 1)):
        raise NACError(
            f"expected each of the shards 1 to {of} once, got {list(numbers)}. Pass all of them."
        )


def alone() -> ContextManager[None]:
    """A block that only one of the processes runs, without waiting for the others."""
    return _as(World())


@contextmanager
def _as(here: World) -> Iterator[None]:
    global _world
    before, _world = _world, here
    try:
        yield
    finally:
        _world = before


def _start() -> None:
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        raise NACError("this PyTorch was built without torch.distributed: use one process.")
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        if dist.is_nccl_available():
            backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend)
    # not when a block ends: processes that meet again at the same address might miss each other
    atexit.register(dist.destroy_process_group)


def was_shared(error: BaseException) -> bool:
    """Whether all processes know of this error, so that one of them can tell it."""
    return error is _shared


def exchange(step: str, value: Any, error: Exception | None = None) -> list[Any]:
    """The values of all processes, in order of their ranks; CPU tensors may be in them.

    Args:
        step: what is being done. All processes must do the same.
        value: what this process has to say.
        error: why it has nothing to say.

    Raises:
        NACError: a process had an error, is doing something else, or has ended.
    """
    global _shared
    if not _world.connected:
        if error is not None:
            raise error
        return [value]
    everyone = _gather((step, value, None if error is None else error_text(error)))
    failed = [(rank, why) for rank, (_, _, why) in enumerate(everyone) if why is not None]
    if failed:
        _shared = error or NACError(with_rank(*failed[0]))
        raise _shared from None
    steps = [step for step, _, _ in everyone]
    if len(set(steps)) > 1:
        _shared = NACError(f"the processes are out of step: they are at {steps}.")
        raise _shared
    return [value for _, value, _ in everyone]


def _gather(payload: Any) -> list[Any]:
    import torch.distributed as dist

    found: list[Any] = [None] * _world.size
    try:
        dist.all_gather_object(found, payload)
    except RuntimeError as error:  # Gloo's and NCCL's errors when a connection is lost
        raise NACError(
            "another process of this job has ended. Its own error, if it had the time to tell, is "
            "above or in its log."
        ) from error
    return found


def with_rank(rank: int, message: str) -> str:
    """A message, and the process that it comes from."""
    return f"{message} (process {rank})"


def _tried(work: Callable[[], _T]) -> tuple[_T | None, Exception | None]:
    """What `work` returns, or why it returns nothing."""
    try:
        return work(), None
    except Exception as error:
        return None, error


def agreed(step: str, make: Callable[[], _T]) -> _T:
    """What the first process makes, for all of them, e.g. what it finds on disk."""
    found: _T = exchange(step, *(_tried(make) if is_main() else (None, None)))[0]
    return found


@contextmanager
def together(step: str) -> Iterator[None]:
    """A block that all processes finish, or none: an error in one is an error in all of them."""
    if not _world.connected:
        yield
        return
    try:
        yield
    except Exception as error:
        if not was_shared(error):
            exchange(step, None, error)
        raise
    exchange(step, None)


def in_turn(step: str, mine: Iterator[_T], work: Callable[[_T], _R]) -> Iterator[_R]:
    """Results of all batches in order, in every process; each process works on its own ones.

    Args:
        step: what is being done.
        mine: the batches of this process: of all batches, every `size`-th from `rank` on.
        work: makes a result of a batch. Its tensors come back on the CPU if there are other
            processes. An error in one process becomes an error in all of them.
    """
    if not _world.connected:
        yield from map(work, mine)
        return
    while True:
        done, error = _tried(lambda: [_on_cpu(work(item)) for item in islice(mine, 1)])
        results = [result for part in exchange(step, done, error) for result in part]
        yield from results
        if len(results) < _world.size:
            return


def _on_cpu(value: Any) -> Any:
    """Tensors on the CPU, also those in plain dicts and tuples."""
    if hasattr(value, "cpu"):
        return value.cpu()
    if type(value) is dict:
        return {name: _on_cpu(part) for name, part in value.items()}
    if type(value) is tuple:
        return tuple(map(_on_cpu, value))
    return value


def summed(step: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors added up over all processes by name, as int64 (or as float64, if they are floats).

    A process that has nothing to add passes no tensors.
    """
    import torch
    import torch.distributed as dist

    if not _world.connected:
        return dict(tensors)
    here = {
        name: (list(tensor.shape), tensor.device.type, tensor.is_floating_point())
        for name, tensor in tensors.items()
    }
    known: dict[str, tuple[list[int], str, bool]] = {}
    for other in exchange(step, here):
        known.update(other)
    added = {}
    for name, (shape, device, floats) in known.items():
        where = tensors[name].device if name in tensors else device
        dtype = torch.float64 if floats else torch.int64
        total = torch.zeros(shape, dtype=dtype, device=where)
        if name in tensors:
            if list(tensors[name].shape) != shape:
                raise NACError(f"the processes have '{name}' in different shapes.")
            total += tensors[name]
        dist.all_reduce(total)
        added[name] = total
    return added
