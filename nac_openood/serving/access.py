"""Who may talk to the service.

A page on the internet can make a visitor's browser send requests to the visitor's own machine. Such
requests carry the page's `Origin`, or, if the page's host name was pointed at this machine (DNS
rebinding), a `Host` that is not ours. Both are refused. No CORS headers are ever sent.
"""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from typing import Mapping, Optional
from urllib.parse import urlsplit

from nac_openood.errors import NACError
from nac_openood.serving.refused import Refused

#: Paths that need no token: nothing about the network or its inputs is told there.
OPEN = frozenset({"/", "/health", "/ready", "/docs", "/openapi.json"})
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_SHORTEST = 16


@dataclass(frozen=True)
class Access:
    """Who may talk to the service.

    Args:
        token: what clients send as `Authorization: Bearer TOKEN`; None asks for none.
        hosts: names in the `Host` header that are ours beside those of the loopback interface;
            None accepts any, which needs a token.
    """

    token: Optional[str] = None
    hosts: Optional[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if self.token is not None and (len(self.token) < _SHORTEST or not self.token.isascii()):
            raise NACError(
                f"the token must be ASCII text of at least {_SHORTEST} characters. Make one: "
                "python -c 'import secrets; print(secrets.token_urlsafe())'"
            )
        if self.hosts is None and self.token is None:
            raise NACError("a service that any host may talk to needs a `token`.")

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        """Refuse a request whose headers do not belong to somebody who may talk to us."""
        host = headers.get("host", "")
        if self.hosts is not None and _name(host) not in (*_LOOPBACK, *map(_name, self.hosts)):
            raise Refused(
                421, f"the Host {host or 'is missing and'} is not one of this service's names."
            )
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise Refused(403, f"pages of another origin ({origin}) may not use this service.")
        if self.token is None or path in OPEN or path.startswith("/static-offline-docs/"):
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        good = hmac.compare_digest(given.strip().encode(), self.token.encode())
        if scheme.lower() != "bearer" or not good:
            raise Refused(401, "a token is needed: send the header Authorization: Bearer TOKEN.")


def _name(host: str) -> str:
    """A host without its port, in lower case."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address or name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
