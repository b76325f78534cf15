"""Metrics for Prometheus: requests, times, batches, decisions, and the share of OOD images."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Callable, Iterable

import prometheus_client as prometheus

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
        for collector in ("ProcessCollector", "PlatformCollector", "GCCollector"):
            getattr(prometheus, collector)(registry=own)
        counter = partial(prometheus.Counter, registry=own)
        times = partial(prometheus.Histogram, registry=own, buckets=_SECONDS)
        self.requests = counter("nac_requests", "Requests by path and status", ["path", "status"])
        self.seconds = times("nac_request_seconds", "Time from head to response", ["path"])
        self.passes = times("nac_batch_seconds", "Time of a pass over the network")
        self.batches = times(
            "nac_batch_images", "Images in a pass over the network", buckets=_SIZES
        )
        self.images = counter("nac_images", "Images by decision and class", ["decision", "class"])
        last = self._last = deque[bool](maxlen=WINDOW)
        for name, description, value in (
            ("nac_queue_images", "Images that wait for the network", waiting),
            ("nac_alpha", "Share of in-distribution images expected to be out", lambda: alpha),
            ("nac_out_share_images", "Images in nac_out_share", lambda: len(last)),
            (
                "nac_out_share",
                f"Share of the last {WINDOW} images that was out",
                lambda: sum(last) / len(last) if last else float("nan"),
            ),
        ):
            prometheus.Gauge(name, description, registry=own).set_function(value)

    def count(self, predictions: Iterable[Prediction]) -> None:
        """Count the decisions about images."""
        for prediction in predictions:
            self.images.labels(prediction.decision, prediction.label).inc()
            self._last.append(prediction.is_out)

    def count_batch(self, images: int, seconds: float) -> None:
        """Count a pass over the network."""
        self.batches.observe(images)
        self.passes.observe(seconds)
