"""Metrics for Prometheus: requests, times, batches, decisions, and the share of OOD images."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Callable, Iterable

import prometheus_client as prometheus
from prometheus_client.exposition import choose_encoder

from nac_openood.sources.fitted import Prediction

#: Number of recent images over which the share of out-of-distribution images is computed.
WINDOW = 1000
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServiceMetrics:
    """The metrics of a service, in their own registry.

    Args:
        alpha: the level of decisions: the share of OOD decisions as long as nothing drifts.
        waiting: returns how many images wait for the network.
    """

    def __init__(self, alpha: float, waiting: Callable[[], int]) -> None:
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
        self._last: deque[bool] = deque(maxlen=WINDOW)
        for name, description, value in (
            ("nac_queue_images", "Images that wait for the network", waiting),
            ("nac_alpha", "Share of in-distribution images expected to be out", lambda: alpha),
            ("nac_out_share", f"Share of the last {WINDOW} images that was out", self.out_share),
            ("nac_out_share_images", "Images in nac_out_share", lambda: len(self._last)),
        ):
            prometheus.Gauge(name, description, registry=own).set_function(value)

    def out_share(self) -> float:
        """The share of the last images that was out; NaN before the first."""
        last = list(self._last)
        return sum(last) / len(last) if last else float("nan")

    def predictions(self, made: Iterable[Prediction]) -> None:
        """Count predictions."""
        for prediction in made:
            self._images.labels(prediction.decision, prediction.label).inc()
            self._last.append(prediction.is_out)

    def batch(self, images: int, seconds: float) -> None:
        """Count a pass over the network."""
        self._batches.observe(images)
        self._passes.observe(seconds)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def page(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the requested format, and its content type."""
        encode, kind = choose_encoder(accept)
        return encode(self.registry), kind
