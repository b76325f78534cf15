"""Access control, size limits and rate limits of the service.

A page on the internet can make a visitor's browser send requests to the visitor's own machine. Such
requests carry the page's `Origin`, or, if the page's host name was pointed at this machine (DNS
rebinding), a `Host` that is not the service's. Both are refused. No CORS headers are ever sent.
"""

from __future__ import annotations

import hmac
import ipaddress
import math
import time
from dataclasses import dataclass, fields
from typing import Callable, Mapping, Optional

from nac_openood.errors import NACError

#: Paths that need no token: they reveal nothing about the network or its inputs.
_PUBLIC = ("/", "/health", "/ready", "/docs", "/openapi.json")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_SHORTEST_TOKEN = 16
#: Clients whose rate is remembered; beyond that, the one not seen for longest is forgotten.
_MAX_CLIENTS = 10_000


@dataclass(frozen=True)
class Limits:
    """Limits of the service; each protects memory or the other clients.

    Args:
        max_pixels: pixels of an image; the default is 75 MB in RGB.
        max_bytes: size of a request's body.
        max_images: images in a request.
        max_requests: requests that are received or answered at the same time.
        max_connections: open connections, idle ones included.
        max_queue: decoded images of several requests that wait for the network.
        max_batch: images in a pass over the network.
        max_wait_ms: milliseconds that an image waits for others to join its batch.
        timeout: seconds that a body may take to arrive, and then its response to be computed.
        rate: images per second from one client address; by default unlimited.
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


class Rates:
    """Rate limits by client, as a leaky bucket for each of them.

    Args:
        rate: images per second; None never refuses.
        burst: images that may be sent at once after a pause.
        clock: seconds that never run backwards.
    """

    def __init__(
        self, rate: Optional[float], burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate, self.burst, self._clock = rate or math.inf, burst, clock
        self._due: dict[str, float] = {}  # when all images of a client are paid for

    def wait(self, client: str) -> float:
        """Seconds until the client may send the next image, 0 if it may now."""
        debt = self._due.get(client, 0.0) - self._clock()
        return max(0.0, debt - (self.burst - 1) / self.rate)

    def charge(self, client: str, images: int) -> None:
        """Count images of a client, which may be more than it should have sent."""
        due = max(self._due.pop(client, 0.0), self._clock())  # popped, so that it is added last
        self._due[client] = due + images / self.rate
        if len(self._due) > _MAX_CLIENTS:
            del self._due[next(iter(self._due))]


@dataclass(frozen=True)
class Access:
    """Who may use the service.

    Args:
        token: what clients send as `Authorization: Bearer TOKEN`; None requires none.
        hosts: accepted names in the `Host` header beside those of the loopback interface; None
            accepts any, which needs a token.
    """

    token: Optional[str] = None
    hosts: Optional[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        token = self.token
        if token is not None and (len(token) < _SHORTEST_TOKEN or not token.isascii()):
            raise NACError(
                f"the token must be ASCII text of at least {_SHORTEST_TOKEN} characters. Make one: "
                "python -c 'import secrets; print(secrets.token_urlsafe())'"
            )
        if self.hosts is None and token is None:
            raise NACError("a service that any host may talk to needs a `token`.")

    def refusal(self, path: str, headers: Mapping[str, str]) -> Optional[tuple[int, str]]:
        """Status and reason if a request must be refused, else None."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.hosts is not None and _name(host) not in (*_LOOPBACK, *map(_name, self.hosts)):
            return 421, f"the Host {host or 'is missing and'} is not one of this service's names."
        if origin is not None and origin.partition("://")[2] != host:
            return 403, f"pages of another origin ({origin}) may not use this service."
        if self.token is None or path in _PUBLIC or path.startswith("/static-offline-docs/"):
            return None
        scheme, _, sent = headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(sent.strip().encode(), self.token.encode())
        if same and scheme.lower() == "bearer":
            return None
        return 401, "a token is needed: send the header Authorization: Bearer TOKEN."


def _name(host: str) -> str:
    """A host without its port, in lower case."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address or name."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
