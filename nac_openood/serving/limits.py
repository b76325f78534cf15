"""What the service accepts, and how often from whom."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import Callable, Optional

from nac_openood.errors import NACError

#: Clients whose rate is remembered; beyond that the one not seen for longest is forgotten.
_CLIENTS = 10_000


@dataclass(frozen=True)
class Limits:
    """Limits of the service; each protects memory or the other clients.

    Args:
        max_pixels: pixels of an image; the default is 75 MB in RGB.
        max_bytes: size of a request's body.
        max_images: images in a request.
        max_requests: requests that are received or answered at the same time.
        max_connections: open connections, idle ones included.
        max_queue: decoded images that wait for the network.
        max_batch: images in a pass over the network.
        max_wait_ms: milliseconds that an image waits for others to join its batch.
        timeout: seconds that a request may take to arrive, and then its answer to be made.
        rate: images per second from one client address; None is unlimited.
    """

    max_pixels: int = 25_000_000
    max_bytes: int = 10 * 2**20
    max_images: int = 32
    max_requests: int = 64
    max_connections: int = 512
    max_queue: int = 256
    max_batch: int = 32
    max_wait_ms: float = 2.0
    timeout: float = 30.0
    rate: Optional[float] = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "max_wait_ms" else math.ulp(0)
            if value is not None and not (value >= least and math.isfinite(value)):
                raise NACError(f"`{field.name}` must be a positive number, got {value!r}.")
        if self.max_queue < self.max_images:
            raise NACError(
                f"`max_queue` is {self.max_queue}, too small for one request of `max_images` = "
                f"{self.max_images}. Raise `max_queue` or lower `max_images`."
            )


class Rates:
    """How many images each client may still send: a bucket that fills at a steady rate.

    Args:
        rate: images per second; None never refuses.
        burst: images that may be sent at once after a pause.
        clock: seconds that never run backwards.
    """

    def __init__(
        self, rate: Optional[float], burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate, self.burst, self._clock = rate, float(burst), clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str) -> float:
        """Seconds until the client may send the next image, 0 if it may now."""
        if self.rate is None:
            return 0.0
        return max(0.0, (1.0 - self._left(client)) / self.rate)

    def charge(self, client: str, images: int) -> None:
        """Take images from the client's bucket, which may leave it in debt."""
        if self.rate is None:
            return
        self._buckets[_network(client)] = (self._left(client) - images, self._clock())
        self._buckets.move_to_end(_network(client))
        if len(self._buckets) > _CLIENTS:
            self._buckets.popitem(last=False)

    def _left(self, client: str) -> float:
        assert self.rate is not None
        left, then = self._buckets.get(_network(client), (self.burst, self._clock()))
        return min(self.burst, left + (self._clock() - then) * self.rate)


def _network(client: str) -> str:
    """Whom an address belongs to: in IPv6 anybody has 2**64 of them."""
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:  # of a test client, or of a Unix socket
        return client
    if address.version == 4:
        return client
    return str(ipaddress.ip_network((address, 64), strict=False))
