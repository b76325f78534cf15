"""The first to see a request: lets it in or not, counts it, and adds headers that browsers obey."""

from __future__ import annotations

import logging
import time

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers

from nac_openood.serving.access import Access
from nac_openood.serving.linger import App, Linger, Message, Receive, Scope, Send
from nac_openood.serving.metrics import ServiceMetrics
from nac_openood.serving.refused import Refused

_LOG = logging.getLogger("nac_openood.serving")
#: Paths that are counted by name; others share one, so that strangers cannot make up many.
_KNOWN = ("/", "/score", "/health", "/ready", "/metrics", "/docs", "/openapi.json")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
#: Logged by nginx where the client has left before the response.
_CLIENT_LEFT = 499


class Reception:
    """ASGI middleware around the whole application."""

    def __init__(self, app: App, access: Access, metrics: ServiceMetrics) -> None:
        self.app, self.access, self.metrics = app, access, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection event."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        start, status = time.perf_counter(), _CLIENT_LEFT

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
            await send(message)

        try:
            await self._let_in(scope, receive, sending)
        except Exception:
            _LOG.exception("a request failed")
            if status == _CLIENT_LEFT:  # the response has not started
                failed = JSONResponse({"error": "an internal error; the log has more."}, 500)
                await failed(scope, receive, sending)
        finally:
            path = scope["path"] if scope["path"] in _KNOWN else "other"
            self.metrics.request(path, status, time.perf_counter() - start)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self.access.check(scope["path"], Headers(scope=scope))
        except Refused as error:
            await Linger(error.response())(scope, receive, send)
        else:
            await self.app(scope, receive, send)
