"""Lingering: a client that is refused while it still sends gets to read why.

Closing a connection with unread data resets it, and the client may lose the response. So the
response is sent at once, what still arrives is thrown away for a while, and then the connection is
closed. Only few clients stop sending when a response arrives.
"""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, Callable, MutableMapping

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: How much is thrown away at most, for how long in all, and for how long if nothing arrives.
_BYTES, _SECONDS, _IDLE = 64 * 2**20, 10.0, 1.0


class Linger:
    """ASGI middleware that finishes requests whose body the application did not read."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection event."""
        if scope["type"] != "http" or not _has_body(scope):
            return await self.app(scope, receive, send)
        asked = ended = False

        async def receiving() -> Message:
            nonlocal asked, ended
            asked = True
            message = await receive()
            ended = ended or not message.get("more_body", False)  # or the client has left
            return message

        async def sending(message: Message) -> None:
            if not ended and message["type"] == "http.response.start":
                closing = [(b"connection", b"close")]
                message = {**message, "headers": [*message.get("headers", ()), *closing]}
            # a client that expects to be asked for its body sends none before
            elif not (ended or message.get("more_body")) and (asked or not _expects(scope)):
                await send({**message, "more_body": True})
                await _throw_away(receive)
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        return await self.app(scope, receiving, sending)


def _has_body(scope: Scope) -> bool:
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def _expects(scope: Scope) -> bool:
    return dict(scope["headers"]).get(b"expect", b"").lower() == b"100-continue"


async def _throw_away(receive: Receive) -> None:
    """Read what arrives until nothing does, or it is too much."""
    clock = asyncio.get_running_loop().time
    end, left = clock() + _SECONDS, _BYTES
    while left > 0 and clock() < end:
        try:
            message = await asyncio.wait_for(receive(), _IDLE)
        except asyncio.TimeoutError:
            return
        left -= len(message.get("body", b""))
        if not message.get("more_body", False):
            return
