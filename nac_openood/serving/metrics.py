"""What Prometheus is told: requests, times, batches, decisions, and the share that is out."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import choose_encoder

from nac_openood.sources.image_paths import Prediction

#: Images that the share of out-of-distribution images is taken over.
WINDOW = 1000
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServiceMetrics:
    """The service's numbers, in a registry of their own.

    Args:
        alpha: the level of decisions: the share that is out as long as nothing drifts.
        waiting: how many images wait for the network.
        window: how many of the last images the sliding share looks at.
    """

    def __init__(self, alpha: float, waiting: Callable[[], int], *, window: int = WINDOW) -> None:
        own = self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=own)
        counter, gauge = partial(Counter, registry=own), partial(Gauge, registry=own)
        histogram = partial(Histogram, registry=own)
        self.requests = counter(
            "nac_requests", "HTTP requests by path and status", ["path", "status"]
        )
        self.seconds = histogram(
            "nac_request_seconds", "Time from the head of a request to the end of its response",
            ["path"], buckets=_SECONDS,
        )  # fmt: skip
        self.batches = histogram(
            "nac_batch_images", "Images in a pass over the network", buckets=_SIZES
        )
        self.passes = histogram(
            "nac_batch_seconds", "Time of a pass over the network", buckets=_SECONDS
        )
        gauge("nac_queue_images", "Images that wait for the network").set_function(waiting)
        self.images = counter(
            "nac_images", "Images judged, by decision and class", ["decision", "class"]
        )
        gauge("nac_alpha", "Share of in-distribution images that is expected to be out").set(alpha)
        self._last: deque[bool] = deque(maxlen=window)
        out = gauge("nac_out_share", f"Share of the last {window} images that was out")
        out.set_function(self.out_share)
        seen = gauge("nac_out_share_images", "Images that nac_out_share is taken over")
        seen.set_function(lambda: len(self._last))

    def out_share(self) -> float:
        """The share of the last images that was out; NaN before the first."""
        last = list(self._last)
        return sum(last) / len(last) if last else float("nan")

    def judged(self, answers: Iterable[Prediction]) -> None:
        """Count answers."""
        for answer in answers:
            self.images.labels(answer.decision, answer.label).inc()
            self._last.append(answer.is_out)

    def batch(self, images: int, seconds: float) -> None:
        """Count a pass over the network."""
        self.batches.observe(images)
        self.passes.observe(seconds)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests.labels(path, str(status)).inc()
        self.seconds.labels(path).observe(seconds)

    def page(self, accept: str) -> tuple[bytes, str]:
        """All numbers in the format that is asked for, and its content type."""
        encode, kind = choose_encoder(accept)
        return encode(self.registry), kind
