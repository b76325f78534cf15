"""Micro-batching: images of several requests share one pass over the network."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Generic, NamedTuple, Optional, Sequence, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class FullError(Exception):
    """As many images are waiting as are allowed to."""


class ClosedError(Exception):
    """The batcher is shutting down and takes no more images."""


class _Waiting(NamedTuple):
    item: Tensor
    future: asyncio.Future
    since: float


class Batcher(Generic[T]):
    """Collects images and works on them in one thread, a batch at a time.

    A batch begins with the image that has waited longest and takes others of the same shape. It
    starts when it is full or its first image has waited long enough; while a batch is at work, the
    next one fills. Images whose caller has given up are left out.

    Args:
        work: from a batch `[n, ...]` to its n results; called from a thread of its own.
        max_batch: images in a batch.
        max_wait: seconds that an image waits for others.
        max_queue: images that may wait.
        observe: told the size of each batch and the seconds it took.
    """

    def __init__(
        self,
        work: Callable[[Tensor], list[T]],
        *,
        max_batch: int,
        max_wait: float,
        max_queue: int,
        observe: Optional[Callable[[int, float], None]] = None,
    ) -> None:
        self._work, self._observe = work, observe
        self.max_batch, self.max_wait, self.max_queue = max_batch, max_wait, max_queue
        self._queue: deque[_Waiting] = deque()
        self._closing = False
        self._task: Optional[asyncio.Task[None]] = None

    def __len__(self) -> int:
        """Images that are waiting."""
        return len(self._queue)

    @property
    def running(self) -> bool:
        """Whether images are taken."""
        return self._task is not None and not self._task.done() and not self._closing

    async def start(self) -> None:
        """Begin to work."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="network")
        self._some, self._enough = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Take no more images, finish those that wait, and stop."""
        self._closing = True
        if self._task is not None:
            self._some.set()
            self._enough.set()
            await self._task
            self._thread.shutdown()

    async def results(self, items: Sequence[Tensor]) -> list[T]:
        """The results of some images, in their order. Cancelling it takes them off the queue.

        Raises:
            FullError: too many images are waiting already.
            ClosedError: after `close`.
            Exception: what `work` raised on one of these images.
        """
        if not self.running:
            raise ClosedError
        if len(self._queue) + len(items) > self.max_queue:
            raise FullError
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[T]] = [loop.create_future() for _ in items]
        now = loop.time()
        self._queue.extend(_Waiting(item, future, now) for item, future in zip(items, futures))
        self._some.set()
        if len(self._queue) >= self.max_batch:
            self._enough.set()
        try:
            return list(await asyncio.gather(*futures))
        except BaseException:  # the caller has given up, or one of the images failed
            for future in futures:
                future.cancel()
            self._queue = deque(entry for entry in self._queue if not entry.future.done())
            raise

    async def _run(self) -> None:
        while not (self._closing and not self._queue):
            if not self._queue:
                self._some.clear()
                await self._some.wait()
                continue
            await self._company()
            await self._finish(self._take())

    async def _company(self) -> None:
        """Give others the time to join the first image."""
        left = self._queue[0].since + self.max_wait - asyncio.get_running_loop().time()
        if left <= 0 or len(self._queue) >= self.max_batch or self._closing:
            return
        self._enough.clear()
        try:
            await asyncio.wait_for(self._enough.wait(), left)
        except asyncio.TimeoutError:
            return

    def _take(self) -> list[_Waiting]:
        """The next batch: the first image and those of its shape."""
        taken: list[_Waiting] = []
        left: deque[_Waiting] = deque()
        for entry in self._queue:
            fits = not taken or entry.item.shape == taken[0].item.shape
            if fits and len(taken) < self.max_batch:
                taken.append(entry)
            else:
                left.append(entry)
        self._queue = left
        return taken

    async def _finish(self, batch: list[_Waiting]) -> None:
        """Work on a batch; on failure on each image alone, so that nobody fails for another."""
        batch = [entry for entry in batch if not entry.future.done()]
        if not batch:
            return
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._thread, self._timed, batch)
        except Exception as error:
            if len(batch) > 1:
                for entry in batch:
                    await self._finish([entry])
            elif not batch[0].future.done():
                batch[0].future.set_exception(error)
            return
        for entry, result in zip(batch, found):
            if not entry.future.done():
                entry.future.set_result(result)

    def _timed(self, batch: list[_Waiting]) -> list[T]:
        start = time.perf_counter()
        found = self._work(torch.stack([entry.item for entry in batch]))
        if len(found) != len(batch):
            raise RuntimeError(f"{len(batch)} images got {len(found)} results")
        if self._observe is not None:
            self._observe(len(batch), time.perf_counter() - start)
        return found
