"""Connections that do not wait forever: uvicorn's protocol with a limit on time and number.

Uvicorn waits as long as it takes for the head of a request, takes any number of connections, and
closes a connection without a word when a client stops in the middle of a body.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any, Optional

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from nac_openood.serving.limits import Limits


class PunctualProtocol(H11Protocol):
    """HTTP/1.1 on one connection. Subclasses set `limits`."""

    limits = Limits()

    def connection_made(self, transport: Any) -> None:
        """Start the clock, or refuse the connection."""
        super().connection_made(transport)
        self._clock: Optional[asyncio.TimerHandle] = None
        if len(self.connections) > self.limits.max_connections:
            self._refuse(503, "too many connections. Try again.")
        else:
            self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived: the first bytes start the clock, a whole head stops it."""
        super().data_received(data)
        if self._busy():
            self._stop_clock()
        elif self._clock is None:
            self._wait_for_head()

    def eof_received(self) -> None:
        """Tell a client that sends no more, although its request is not complete."""
        if self._busy() and self.cycle.more_body and not self.cycle.response_started:
            self._refuse(400, "the request ended before its body was complete.")

    def connection_lost(self, exc: Optional[Exception]) -> None:
        """Stop the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        self._refuse(400, msg)

    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_head(self) -> None:
        told = f"no request arrived within {self.limits.timeout:g} s."
        self._clock = self.loop.call_later(self.limits.timeout, self._refuse, 408, told)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _refuse(self, status: int, reason: str) -> None:
        """Write an error without asking the application, and close the connection."""
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": reason})
            phrase = HTTPStatus(status).phrase
            head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            self.transport.write((head + body).encode())
        self.transport.close()


def protocol(limits: Limits) -> type[PunctualProtocol]:
    """The protocol under these limits."""
    return type("LimitedProtocol", (PunctualProtocol,), {"limits": limits})
