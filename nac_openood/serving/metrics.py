"""Metrics for Prometheus: requests, times, batches, decisions, and the share that is out."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Callable, Iterable

import prometheus_client as prometheus
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
        own = self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=own)
        prometheus.PlatformCollector(registry=own)
        prometheus.GCCollector(registry=own)
        counter = partial(prometheus.Counter, registry=own)
        times = partial(prometheus.Histogram, registry=own, buckets=_SECONDS)
        self._requests = counter("nac_requests", "Requests by path and status", ["path", "status"])
        self._seconds = times("nac_request_seconds", "Time from head to response", ["path"])
        self._passes = times("nac_batch_seconds", "Time of a pass over the network")
        self._batches = prometheus.Histogram(
            "nac_batch_images", "Images in a pass over the network", registry=own, buckets=_SIZES
        )
        self._images = counter("nac_images", "Images by decision and class", ["decision", "class"])
        self._last: deque[bool] = deque(maxlen=window)
        for name, description, value in (
            ("nac_queue_images", "Images that wait for the network", waiting),
            ("nac_alpha", "Share of in-distribution images expected to be out", lambda: alpha),
            ("nac_out_share", f"Share of the last {window} images that was out", self.out_share),
            ("nac_out_share_images", "Images in nac_out_share", lambda: len(self._last)),
        ):
            prometheus.Gauge(name, description, registry=own).set_function(value)

    def out_share(self) -> float:
        """The share of the last images that was out; NaN before the first."""
        last = list(self._last)
        return sum(last) / len(last) if last else float("nan")

    def judged(self, answers: Iterable[Prediction]) -> None:
        """Count answers."""
        for answer in answers:
            self._images.labels(answer.decision, answer.label).inc()
            self._last.append(answer.is_out)

    def batch(self, images: int, seconds: float) -> None:
        """Count a pass over the network."""
        self._batches.observe(images)
        self._passes.observe(seconds)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def page(self, accept: str) -> tuple[bytes, str]:
        """All numbers in the format that is asked for, and its content type."""
        encode, kind = choose_encoder(accept)
        return encode(self.registry), kind
