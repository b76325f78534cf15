"""Scores images from their bytes, in batches; independent of HTTP."""

from __future__ import annotations

import asyncio
import io
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Callable, NamedTuple, Optional, Sequence

import torch
from torch import Tensor

from nac_openood.detector.outcomes import ALPHA, checked_alpha
from nac_openood.serving.limits import Limits
from nac_openood.sources.fitted import Pipeline, Prediction, judge_batch
from nac_openood.sources.images import COMMON_FORMATS, rgb_image


class Judge:
    """Decodes, transforms and scores images.

    Args:
        pipeline: a fitted and calibrated detector, and the transform of its images.
        alpha: the p-value at or below which an image is out-of-distribution.

    Attributes:
        monitor: watches the images for drift.
        monitor_file: where its state is kept, if anywhere.
    """

    def __init__(self, pipeline: Pipeline, *, alpha: float = ALPHA) -> None:
        self.pipeline, self.alpha = pipeline, checked_alpha(alpha)
        self.monitor = pipeline.detector.monitor()
        self.monitor_file: Optional[str] = None

    def tensor(self, content: bytes, max_pixels: int = Limits.max_pixels) -> Tensor:
        """Decode and transform an image; may be called from several threads.

        Args:
            content: of an image file.
            max_pixels: the largest image that is decoded.

        Raises:
            ImageError: the bytes are not an accepted image.
        """
        image = rgb_image(io.BytesIO(content), formats=COMMON_FORMATS, max_pixels=max_pixels)
        return self.pipeline.transform(image)

    def answers(self, batch: Tensor) -> list[Prediction]:
        """Score transformed images `[batch, ...]` in one pass over the network."""
        return judge_batch(self.pipeline, batch, [""] * len(batch), alpha=self.alpha)

    def warm_up(self) -> Optional[str]:
        """Score a gray image, so that the first request is fast; return the error if it fails."""
        try:
            self.answers(self.pipeline.gray_input())
        except Exception as error:  # the user's transform or network may raise anything
            return str(error) or type(error).__name__
        return None


class BusyError(Exception):
    """No image can be accepted now; the message says why."""


class _Waiting(NamedTuple):
    item: Tensor
    future: asyncio.Future
    since: float


class Batcher:
    """Micro-batching: images of several requests share one pass over the network.

    A batch begins with the image that has waited longest and takes others of the same shape. It
    starts when it is full or its first image has waited long enough; while one batch is processed,
    the next one fills. Images whose caller has given up are left out.

    Args:
        work: returns the n results of a batch `[n, ...]`; called in its own thread.
        limits: of which `max_batch`, `max_wait_ms` and `max_queue` are used.
    """

    def __init__(self, work: Callable[[Tensor], list[Any]], limits: Limits) -> None:
        self._work, self._limits = work, limits
        self._queue: list[_Waiting] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="network")
        self.running = False

    def __len__(self) -> int:
        """Images that are waiting."""
        return len(self._queue)

    async def start(self) -> None:
        """Start the task that processes batches."""
        self._changed = asyncio.Event()
        self.running = True
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Accept no more images, finish those that wait, and stop."""
        self.running = False
        self._changed.set()
        await self._task
        self._thread.shutdown()

    async def results(self, items: Sequence[Tensor]) -> list[Any]:
        """Wait for the results of some images. Cancelling it removes them from the queue.

        The result of an image on which `work` failed is the exception.

        Raises:
            BusyError: too many images are waiting already, or `close` was called.
        """
        if not self.running:
            raise BusyError("the service is stopping.")
        if self._queue and len(self._queue) + len(items) > self._limits.max_queue:
            raise BusyError("too many images are waiting. Try again.")
        loop = asyncio.get_running_loop()
        waiting = [_Waiting(item, loop.create_future(), loop.time()) for item in items]
        self._queue += waiting
        self._changed.set()
        try:
            return list(await asyncio.gather(*(entry.future for entry in waiting)))
        except BaseException:  # the caller has given up
            for entry in waiting:
                entry.future.cancel()
            self._queue = [entry for entry in self._queue if not entry.future.done()]
            raise

    async def _run(self) -> None:
        while self.running or self._queue:
            left = None
            if self._queue:
                waited = asyncio.get_running_loop().time() - self._queue[0].since
                left = self._limits.max_wait_ms / 1000 - waited
                if left <= 0 or len(self._queue) >= self._limits.max_batch or not self.running:
                    await self._process(self._take())
                    continue
            self._changed.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    def _take(self) -> list[_Waiting]:
        """The next batch: the first image and those of its shape."""
        shape = self._queue[0].item.shape
        same = [n for n, entry in enumerate(self._queue) if entry.item.shape == shape]
        taken = same[: self._limits.max_batch]
        return [self._queue.pop(n) for n in reversed(taken)][::-1]

    async def _process(self, batch: list[_Waiting]) -> None:
        """Process a batch; if that fails, each image alone, so that only the bad one fails."""
        loop, found = asyncio.get_running_loop(), list[Any]()
        try:
            found = await loop.run_in_executor(self._thread, self._results, batch)
        except Exception as error:
            for entry in batch if len(batch) > 1 else ():
                await self._process([entry])
            found = [error] if len(batch) == 1 else []
        for entry, result in zip(batch, found):
            if not entry.future.done():
                entry.future.set_result(result)

    def _results(self, batch: list[_Waiting]) -> list[Any]:
        found = self._work(torch.stack([entry.item for entry in batch]))
        if len(found) != len(batch):  # otherwise some callers would wait forever
            raise RuntimeError(f"{len(found)} results for {len(batch)} images")
        return found
