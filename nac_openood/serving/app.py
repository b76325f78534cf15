"""The HTTP application around a judge."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from contextlib import asynccontextmanager
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, AsyncIterator, Literal, Mapping, Optional

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi_offline import FastAPIOffline
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nac_openood.__about__ import __version__
from nac_openood.serving.judge import Judge
from nac_openood.serving.limits import Access, Limits
from nac_openood.serving.metrics import ServiceMetrics
from nac_openood.serving.scoring import CLIENT_LEFT, Scoring, retry

_DESCRIPTION = """\
Classifies images and tells whether the prediction can be trusted: `score` (higher = more like the
training data), `p_value` (how unusual the score is) and `decision` (`in` or `out`).
"""
#: Paths that are counted by name; all others are counted as one, so that clients cannot add any.
_PATHS = ("/", "/score", "/health", "/ready", "/metrics", "/docs", "/openapi.json")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


# -- the OpenAPI page ----------------------------------------------------------------------------


class Result(BaseModel):
    """The result of one image: the columns of `nac-openood score`."""

    path: str
    label: str = Field(alias="class")
    confidence: Optional[float]
    score: Optional[float]
    p_value: Optional[float]
    decision: Literal["in", "out"]


#: The error responses of /score; their `error` says why.
ERRORS: dict[Any, dict[str, Any]] = {
    status: {"model": dict[str, str], "description": HTTPStatus(status).phrase}
    for status in (400, 401, 403, 408, 413, 415, 421, 429, 500, 503, 504)
}
_FILE = {"type": "string", "format": "binary"}
_FORM = {"type": "object", "properties": {"image": {"type": "array", "items": _FILE}}}
#: The body of /score, which is parsed by hand to keep to the limits.
_BODY = {"image/*": {"schema": _FILE}, "multipart/form-data": {"schema": _FORM}}


# -- the application -----------------------------------------------------------------------------


def service(
    judge: Judge, *, limits: Optional[Limits] = None, access: Optional[Access] = None
) -> FastAPI:
    """The service as an ASGI application.

    Args:
        judge: a detector and its transform.
        limits: what is accepted; the defaults of `Limits` if None.
        access: who may use it; if None, only requests to a name of the loopback interface.
    """
    scoring = Scoring(judge, limits or Limits())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await scoring.start()
        try:
            yield
        finally:
            await scoring.close()

    app: FastAPI = FastAPIOffline(
        title="nac-openood", version=__version__, description=_DESCRIPTION, lifespan=lifespan,
        redoc_url=None,
    )  # fmt: skip
    app.add_middleware(_Guard, access=access or Access(), metrics=scoring.metrics)

    @app.exception_handler(HTTPException)
    async def refuse(_: Request, error: HTTPException) -> Response:
        return _refused(error.status_code, error.detail, error.headers)

    body = {"requestBody": {"required": True, "content": _BODY}}

    @app.post(
        "/score", openapi_extra=body, responses=ERRORS, response_model=dict[str, list[Result]]
    )
    async def score(request: Request, path: str = "") -> Response:
        """Score one image, sent as the body, or several, sent as the files of a form.

        The name of a single image is `path`. The files of a form may have any field names. The
        order of the results is that of the images.
        """
        return JSONResponse({"results": await scoring.results(request)})

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        text, policy = _page()
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the service is alive."""
        return {"status": "ok", "version": __version__}

    @app.get("/ready", responses={503: ERRORS[503]})
    async def ready() -> dict[str, str]:
        """Whether images are accepted."""
        if not scoring.batcher.running:
            raise retry(503, "the service is starting or stopping.")
        return {"status": "ready"}

    @app.get("/metrics", response_class=Response)
    async def metrics(request: Request) -> Response:
        """Numbers in the format of Prometheus."""
        content, kind = scoring.metrics.page(request.headers.get("accept", ""))
        return Response(content, media_type=kind)

    return app


class _Guard:
    """ASGI middleware: checks access, counts requests, and adds security headers."""

    def __init__(self, app: ASGIApp, access: Access, metrics: ServiceMetrics) -> None:
        self.app, self.access, self.metrics = app, access, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection event."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        start, status = time.perf_counter(), CLIENT_LEFT

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
            await send(message)

        refusal = self.access.refusal(scope["path"], Headers(scope=scope))
        app = self.app if refusal is None else _refused(*refusal)
        try:
            await app(scope, receive, send_with_headers)
        except Exception:  # uvicorn answers and logs it
            status = 500
            raise
        finally:
            path = scope["path"] if scope["path"] in _PATHS else "other"
            self.metrics.request(path, status, time.perf_counter() - start)


def _refused(status: int, reason: str, headers: Optional[Mapping[str, str]] = None) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else headers
    return JSONResponse({"error": reason}, status, headers=headers)


@cache
def _page() -> tuple[str, str]:
    """The page to drop images on, and a policy that allows only its own script."""
    file = Path(__file__).parent / "assets" / "drop.html"
    text = file.read_text(encoding="utf-8")
    policy = (
        "default-src 'none'; connect-src 'self'; img-src blob: data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
    for tag in ("script", "style"):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        policy += f"; {tag}-src 'sha256-{digest}'"
    return text, policy
