"""From a request to its answers: limits, decoding, batching, time-outs."""

from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect
from torch import Tensor

from nac_openood.serving.batcher import Batcher, ClosedError, FullError
from nac_openood.serving.bodies import Upload, uploads
from nac_openood.serving.judge import Judge
from nac_openood.serving.limits import Limits, Rates
from nac_openood.serving.metrics import ServiceMetrics
from nac_openood.serving.refused import Refused
from nac_openood.sources.image_paths import Prediction
from nac_openood.sources.images import ImageError, LargeImageError, NoImageError

_LOG = logging.getLogger("nac_openood.serving")
#: Images that are decoded at the same time; each may take the memory of `max_pixels`.
_DECODERS = max(1, min(4, os.cpu_count() or 1))


class Scoring:
    """Answers requests with the help of a judge.

    Args:
        judge: a detector and its transform.
        limits: what is accepted.
    """

    def __init__(self, judge: Judge, limits: Limits) -> None:
        self.judge, self.limits = judge, limits
        self.metrics = ServiceMetrics(judge.alpha, lambda: len(self.batcher))
        self.batcher: Batcher[Prediction] = Batcher(
            judge.answers, max_batch=limits.max_batch, max_wait=limits.max_wait_ms / 1000,
            max_queue=limits.max_queue, observe=self.metrics.batch,
        )  # fmt: skip
        self.rates = Rates(limits.rate, max(limits.max_images, int(limits.rate or 0)))
        self._requests = 0

    async def start(self) -> None:
        """Start the threads."""
        self._decoders = ThreadPoolExecutor(_DECODERS, thread_name_prefix="decoder")
        await self.batcher.start()

    async def close(self) -> None:
        """Judge what was taken, and stop the threads."""
        await self.batcher.close()
        self._decoders.shutdown()

    async def results(self, request: Request) -> list[dict[str, Any]]:
        """The fields of every image of a request.

        Raises:
            Refused: with the status to answer.
        """
        client = request.client.host if request.client else ""
        self._admit(client)
        self._requests += 1
        try:
            images = await uploads(request, self.limits)
            self.rates.charge(client, len(images))
            answers = await self._while_connected(request, self._answers(images))
        except ClientDisconnect:
            raise Refused(499, "the client left before it got an answer.") from None
        finally:
            self._requests -= 1
        self.metrics.judged(answers)
        named = zip(images, answers)
        return [answer._replace(path=image.name).json_fields() for image, answer in named]

    def _admit(self, client: str) -> None:
        """Refuse a request by what is known before its body is read."""
        if self._requests >= self.limits.max_requests:
            raise Refused(503, "too many requests at the same time. Try again.", retry_after=1)
        wait = self.rates.wait(client)
        if wait > 0:
            raise Refused(
                429, f"more than {self.limits.rate:g} images per second. Slow down.",
                retry_after=wait,
            )  # fmt: skip

    async def _while_connected(self, request: Request, answering: Any) -> list[Prediction]:
        """Wait for the answers, no longer than allowed and only as long as the client does."""
        work = asyncio.ensure_future(answering)
        # after the body, the next thing to be received is that the client has left
        left = asyncio.ensure_future(request.receive())
        try:
            await asyncio.wait(
                {work, left}, timeout=self.limits.timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if work.done():
                return work.result()
            if left.done():
                raise ClientDisconnect
            raise Refused(
                504, f"no answer within {self.limits.timeout:g} s. Try again later.", retry_after=1
            )
        finally:
            for task in (work, left):
                task.cancel()
            await asyncio.wait({work, left})
            if not work.cancelled():
                work.exception()  # seen, even if the client has left meanwhile

    async def _answers(self, images: list[Upload]) -> list[Prediction]:
        tensors = [await self._tensor(image) for image in images]
        try:
            return await self.batcher.results(tensors)
        except FullError:
            raise Refused(503, "too many images are waiting. Try again.", retry_after=1) from None
        except ClosedError:
            raise Refused(503, "the service is stopping.", retry_after=1) from None
        except Exception as error:
            shapes = sorted({tuple(tensor.shape) for tensor in tensors})
            _LOG.exception("the network failed on tensors of shape %s", shapes)
            raise Refused(
                500, f"the network failed on an image of shape {shapes[0]}; the log has more."
            ) from error

    async def _tensor(self, image: Upload) -> Tensor:
        named = image.name or "the image"
        loop, most = asyncio.get_running_loop(), self.limits.max_pixels
        try:
            return await loop.run_in_executor(
                self._decoders, self.judge.tensor, image.content, most
            )
        except LargeImageError as error:
            raise Refused(413, f"{named} is too large: {error}.") from error
        except NoImageError as error:
            raise Refused(415, f"{named} cannot be read: {error}.") from error
        except ImageError as error:
            raise Refused(400, f"{named} cannot be read: {error}.") from error
        except Exception as error:
            _LOG.exception("the transform failed")
            raise Refused(500, f"the transform failed on {named}; the log has more.") from error
