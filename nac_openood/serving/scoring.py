"""Answers a request: reads the body, decodes the images, waits for their predictions; metrics."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, AsyncGenerator, Callable, Coroutine, Iterable, Tuple

import prometheus_client as prometheus
import python_multipart as python_multipart  # starlette imports it when a form arrives
from fastapi import HTTPException, Request
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect
from torch import Tensor

from nac_openood.errors import FileError
from nac_openood.serving.judge import Batcher, BusyError, Judge
from nac_openood.serving.limits import Limits, Rates
from nac_openood.sources.fitted import InputError, Prediction
from nac_openood.sources.images import ImageError, LargeImageError, NotAnImageError

_LOG = logging.getLogger("nac_openood.serving")
#: Number of recent images over which the share of out-of-distribution images is computed.
WINDOW = 1000
#: How often the state of the drift monitor is written.
SAVE_SECONDS = 60.0
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
#: The name and the content of an image.
_Upload = Tuple[str, bytes]
#: Images that are decoded at the same time; each may take the memory of `max_pixels`.
_DECODERS = max(1, min(4, os.cpu_count() or 1))
#: The status under which nginx logs that the client has left before the response.
CLIENT_LEFT = 499
_HINT = (
    "Send one image as the body with its Content-Type (image/png, image/jpeg, ...), or several as "
    "the files of a multipart/form-data form."
)


def retry(status: int, reason: str, seconds: float = 1) -> HTTPException:
    """The error response to a request that may succeed later."""
    return HTTPException(status, reason, {"Retry-After": str(max(1, math.ceil(seconds)))})


class _InMemoryParser(MultiPartParser):
    """Uploads are never written to disk; their total size is limited anyway.

    Attributes:
        complete: whether the form has ended; the last file of a form that is cut off is dropped.
    """

    spool_max_size, complete = 2**62, False

    def on_end(self) -> None:
        self.complete = True

    async def parse(self) -> FormData:
        self.stream = self._whole(self.stream)
        return await super().parse()

    async def _whole(self, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async for chunk in chunks:
            yield chunk
        if not self.complete:
            raise MultiPartException("It is cut off: the last boundary is missing.")


class Scoring:
    """Answers requests for scores.

    Args:
        judge: a detector and its transform.
        limits: what is accepted.
    """

    def __init__(self, judge: Judge, limits: Limits) -> None:
        self.judge, self.limits = judge, limits
        self.metrics = ServiceMetrics(judge, lambda: len(self.batcher))
        self.batcher = Batcher(self._judged, limits)
        self.rates = Rates(limits.rate, max(limits.max_images, int(limits.rate or 0)))
        self._requests, self._saved = 0, time.monotonic()
        self._decoders = ThreadPoolExecutor(_DECODERS, thread_name_prefix="decoder")

    def _judged(self, batch: Tensor) -> list[Prediction]:
        with self.metrics.passes.time():
            found = self.judge.answers(batch)
        self.metrics.batches.observe(len(batch))
        return found

    async def close(self) -> None:
        """Finish the accepted images, and stop the threads."""
        await self.batcher.close()
        self._decoders.shutdown()

    async def results(self, request: Request) -> list[dict[str, Any]]:
        """The result of every image of a request.

        Raises:
            HTTPException: with the status and the reason.
        """
        client = request.client.host if request.client else ""
        if self._requests >= self.limits.max_requests:
            raise retry(503, "too many requests at the same time. Try again.")
        wait = self.rates.wait(client)
        if wait > 0:
            raise retry(429, f"more than {self.limits.rate:g} images per second. Slow down.", wait)
        self._requests += 1
        try:
            images = await self._uploads(request)
            self.rates.charge(client, len(images))
            answers = await self._while_connected(request, self._answers(images))
        except ClientDisconnect:
            raise HTTPException(CLIENT_LEFT, "the client left before its answer.") from None
        finally:
            self._requests -= 1
        self.metrics.count(answers)
        self._watch(answers)
        named = zip(images, answers)
        return [answer._replace(path=name).json_fields() for (name, _), answer in named]

    def _watch(self, answers: list[Prediction]) -> None:
        """Tell the monitor, and write its state from time to time: a service may be killed."""
        monitor, file = self.judge.monitor, self.judge.monitor_file
        monitor.update_scores([answer.score for answer in answers])
        if file is not None and time.monotonic() - self._saved >= SAVE_SECONDS:
            self._saved = time.monotonic()
            try:
                monitor.save(file)
            except FileError:  # images are still judged
                _LOG.exception("the state of the drift monitor cannot be saved")

    # -- the body ------------------------------------------------------------------------------

    async def _uploads(self, request: Request) -> list[_Upload]:
        """The images of a request, none of them empty."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_form = kind == "multipart/form-data"
        if not is_form and not kind.startswith("image/") and kind != "application/octet-stream":
            raise HTTPException(415, f"the Content-Type is {kind or 'missing'}. {_HINT}")
        declared = request.headers.get("content-length", "0")
        self._check_size(int(declared) if declared.isdigit() else 0)
        timeout = self.limits.timeout
        reading = self._form if is_form else self._image
        try:
            found = await asyncio.wait_for(reading(request), timeout)
        except asyncio.TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {timeout:g} s.") from None
        for name, content in found:
            if not content:
                raise HTTPException(400, f"{name or 'the body'} is empty. {_HINT}")
        return found

    async def _image(self, request: Request) -> list[_Upload]:
        content = b"".join([chunk async for chunk in self._chunks(request)])
        return [(request.query_params.get("path", ""), content)]

    async def _form(self, request: Request) -> list[_Upload]:
        most, chunks = self.limits.max_images, self._chunks(request)
        try:
            parser = _InMemoryParser(request.headers, chunks, max_files=most, max_fields=0)
            form: Any = await parser.parse()
        except MultiPartException as error:
            status = 413 if "Too many files" in error.message else 400
            reason = f"the form cannot be read: {error.message} {_HINT}"
            raise HTTPException(status, reason) from error
        # files only: other parts were refused
        found = [(part.filename or "", await part.read()) for _, part in form.multi_items()]
        await form.close()
        if not found:
            raise HTTPException(400, f"the form holds no file. {_HINT}")
        return found

    async def _chunks(self, request: Request) -> AsyncGenerator[bytes, None]:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            self._check_size(size)
            yield chunk

    def _check_size(self, size: int) -> None:
        most = self.limits.max_bytes
        if size > most:
            raise HTTPException(413, f"the body is longer than the {most:,} bytes accepted.")

    # -- answers -------------------------------------------------------------------------------

    async def _while_connected(
        self, request: Request, answering: Coroutine[Any, Any, list[Prediction]]
    ) -> list[Prediction]:
        """Wait for the answers until the timeout, or until the client disconnects."""
        timeout = self.limits.timeout
        work = asyncio.create_task(answering)
        # after the body, the next message is that the client has left
        left = asyncio.ensure_future(request.receive())
        done, pending = await asyncio.wait(
            {work, left}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        if work in done:
            return await work
        if left in done:
            raise ClientDisconnect
        raise retry(504, f"no answer within {timeout:g} s. Try again later.")

    async def _answers(self, images: list[_Upload]) -> list[Prediction]:
        tensors = [await self._tensor(name or "the image", content) for name, content in images]
        try:
            found = await self.batcher.results(tensors)
        except BusyError as error:
            raise retry(503, str(error)) from None
        failures = [
            _failure(name, tensor, one)
            for (name, _), tensor, one in zip(images, tensors, found)
            if isinstance(one, Exception)
        ]
        if failures:
            worst = max(status for status, _ in failures)
            raise HTTPException(worst, " ".join(reason for _, reason in failures))
        return found

    async def _tensor(self, name: str, content: bytes) -> Tensor:
        decode = partial(self.judge.tensor, content, self.limits.max_pixels)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._decoders, decode)
        except LargeImageError as error:
            raise HTTPException(413, f"{name} is too large: {error}.") from error
        except ImageError as error:
            status = 415 if isinstance(error, NotAnImageError) else 400
            raise HTTPException(status, f"{name} cannot be read: {error}.") from error
        except Exception as error:
            _LOG.exception("the transform failed")
            reason = f"the transform failed on {name}; the log has more."
            raise HTTPException(500, reason) from error


def _failure(name: str, image: Tensor, error: Exception) -> tuple[int, str]:
    """The status and the reason of a response about an image that the network failed on."""
    if isinstance(error, InputError):
        return 400, f"{name or 'the image'} cannot be judged: {error}"
    shape = tuple(image.shape)
    _LOG.error("the network failed on a tensor of shape %s", shape, exc_info=error)
    return 500, f"the network failed on {name or 'an image'} of shape {shape}; the log has more."


# -- metrics for Prometheus ----------------------------------------------------------------------


class ServiceMetrics:
    """The metrics of a service, in their own registry.

    Args:
        judge: its level is at least the share of OOD decisions as long as nothing drifts.
        waiting: returns how many images wait for the network.
    """

    def __init__(self, judge: Judge, waiting: Callable[[], int]) -> None:
        own = self.registry = prometheus.CollectorRegistry()
        for collector in ("ProcessCollector", "PlatformCollector", "GCCollector"):
            getattr(prometheus, collector)(registry=own)
        counter = partial(prometheus.Counter, registry=own)
        gauge = partial(prometheus.Gauge, registry=own)
        times = partial(prometheus.Histogram, registry=own, buckets=_SECONDS)
        self.requests = counter("nac_requests", "Requests by path and status", ["path", "status"])
        self.seconds = times("nac_request_seconds", "Time from head to response", ["path"])
        self.passes = times("nac_batch_seconds", "Time of a pass over the network")
        self.batches = times("nac_batch_images", "Images per pass over the network", buckets=_SIZES)
        self.images = counter("nac_images", "Images by decision and class", ["decision", "class"])
        last = self._last = deque[bool](maxlen=WINDOW)
        gauge("nac_queue_images", "Images that wait for the network").set_function(waiting)
        gauge("nac_alpha", "Share of in-distribution images expected to be out").set(judge.alpha)
        gauge("nac_out_share_images", "Images in nac_out_share").set_function(lambda: len(last))
        share = gauge("nac_out_share", f"Share of the last {WINDOW} images that was out")
        share.set_function(lambda: sum(last) / len(last) if last else float("nan"))
        monitor = judge.monitor
        evidence = gauge("nac_drift_evidence_log10", "Evidence of drift, as a power of ten")
        evidence.set_function(lambda: monitor.log10_evidence)
        alarm = gauge("nac_drift_alarm", "1 after an alarm of drift")
        alarm.set_function(lambda: float(monitor.alarm))

    def count(self, predictions: Iterable[Prediction]) -> None:
        """Count the decisions about images."""
        for prediction in predictions:
            self.images.labels(prediction.decision, prediction.label).inc()
            self._last.append(prediction.is_out)
