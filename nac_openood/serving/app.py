"""The HTTP application around a judge, and the process that serves it until a signal."""

from __future__ import annotations

import base64
import hashlib
import re
import signal
import socket
import time
from contextlib import asynccontextmanager
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, AsyncIterator, Literal, Mapping, Optional

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from prometheus_client.exposition import choose_encoder
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.middleware.base import RequestResponseEndpoint
from uvicorn.protocols.http.h11_impl import H11Protocol

from nac_openood.__about__ import __version__
from nac_openood.errors import NACError
from nac_openood.serving.judge import Judge
from nac_openood.serving.limits import Access, Limits
from nac_openood.serving.scoring import Scoring, retry

_DESCRIPTION = """\
Classifies images and tells whether the prediction can be trusted: `score` (higher = more like the
training data), `p_value` (how unusual the score is) and `decision` (`in` or `out`).
"""
_LIMITS, _ACCESS = Limits(), Access()
#: Paths that are answered over any number of connections.
_PROBES = ("/health", "/ready", "/metrics")
#: Paths that are counted by name; all others are counted as one, so that clients cannot add any.
_PATHS = ("/", "/score", "/health", "/ready", "/drift", "/metrics", "/docs", "/openapi.json")
_CLOSE = {"Connection": "close", "Retry-After": "1"}
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


# -- the OpenAPI page ----------------------------------------------------------------------------


class Result(BaseModel):
    """The result of one image: the columns of `nac-openood score`."""

    path: str
    label: str = Field(alias="class")
    confidence: Optional[float]
    score: Optional[float]
    p_value: Optional[float]
    decision: Literal["in", "out"]


class DriftState(BaseModel):
    """Evidence that images are unlike the calibration data; an alarm is at 1 / probability."""

    images: int
    evidence_log10: float
    alarm: bool
    alarm_at: Optional[int]
    false_alarm_probability: float


#: The error responses of /score; their `error` says why.
ERRORS: dict[Any, dict[str, Any]] = {
    status: {"model": dict[str, str], "description": HTTPStatus(status).phrase}
    for status in (400, 401, 403, 408, 413, 415, 421, 429, 500, 503, 504)
}
_FILE = {"type": "string", "format": "binary"}
_FORM = {"type": "object", "properties": {"image": {"type": "array", "items": _FILE}}}
#: The body of /score, which is parsed by hand to keep to the limits.
_CONTENT = {"image/*": {"schema": _FILE}, "multipart/form-data": {"schema": _FORM}}
_BODY = {"requestBody": {"required": True, "content": _CONTENT}}


# -- the application -----------------------------------------------------------------------------


def service(judge: Judge, *, limits: Limits = _LIMITS, access: Access = _ACCESS) -> FastAPI:
    """The service as an ASGI application.

    Args:
        judge: a detector and its transform.
        limits: what is accepted.
        access: who may use it; by default, only requests to a name of the loopback interface.
    """
    scoring = Scoring(judge, limits)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await scoring.batcher.start()
        yield
        await scoring.close()

    app: FastAPI = FastAPIOffline(
        title="nac-openood", version=__version__, description=_DESCRIPTION, lifespan=lifespan,
        redoc_url=None,
    )  # fmt: skip

    app.state.connections, app.state.metrics = (), scoring.metrics

    @app.middleware("http")
    async def guard(request: Request, respond: RequestResponseEndpoint) -> Response:
        """Check access, count the request, and add security headers to the response."""
        path, start, status = request.url.path, time.perf_counter(), 500
        refusal = access.refusal(path, request.headers)
        try:
            if refusal is not None:
                response = _refused(*refusal)
            elif len(app.state.connections) > limits.max_connections and path not in _PROBES:
                response = _refused(503, "too many connections. Try again.", _CLOSE)
            else:
                response = await respond(request)
            status = response.status_code
        finally:
            known = path if path in _PATHS else "other"
            scoring.metrics.requests.labels(known, str(status)).inc()
            scoring.metrics.seconds.labels(known).observe(time.perf_counter() - start)
        response.headers.update(_HEADERS)
        return response

    @app.exception_handler(HTTPException)
    async def refuse(_: Request, error: HTTPException) -> Response:
        return _refused(error.status_code, error.detail, error.headers)

    @app.post(
        "/score", openapi_extra=_BODY, responses=ERRORS, response_model=dict[str, list[Result]]
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

    @app.get("/drift", response_model=DriftState)
    async def drift() -> DriftState:
        """Whether the images so far are like the calibration data."""
        monitor = judge.monitor
        return DriftState(
            images=monitor.n_inputs,
            evidence_log10=monitor.log10_evidence,
            alarm=monitor.alarm,
            alarm_at=monitor.alarm_at,
            false_alarm_probability=monitor.alpha,
        )

    @app.get("/metrics", response_class=Response)
    async def metrics(request: Request) -> Response:
        """Numbers in the format of Prometheus."""
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(scoring.metrics.registry), media_type=kind)

    app.openapi()  # kept, so that it does not list HEAD beside every GET
    for route in app.routes:
        if isinstance(route, APIRoute) and route.methods == {"GET"}:
            route.methods.add("HEAD")
    return app


def _refused(status: int, reason: str, headers: Optional[Mapping[str, str]] = None) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else headers
    return JSONResponse({"error": reason}, status, headers=headers)


@cache
def _page() -> tuple[str, str]:
    """The page to drop images on, and a policy that allows only its own script."""
    text = (Path(__file__).parent / "assets" / "drop.html").read_text(encoding="utf-8")
    policy = (
        "default-src 'none'; connect-src 'self'; img-src blob: data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
    for tag in ("script", "style"):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        policy += f"; {tag}-src 'sha256-{digest}'"
    return text, policy


# -- the process ---------------------------------------------------------------------------------


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket on which connections wait until the service has started; port 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        opened = socket.create_server((host.strip("[]"), port), family=family, backlog=1024)
    except OSError as error:
        reason = f"({error.strerror}). Choose another `port` or `host`."
        raise NACError(f"cannot listen on {host}, port {port} {reason}") from error
    # asyncio sets this for its own sockets only; without it, every answer may wait for 40 ms
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
    return opened


def server(judge: Judge, *, limits: Limits = _LIMITS, access: Access = _ACCESS) -> uvicorn.Server:
    """A uvicorn server of `judge`; `run(sockets=[...])` runs it, `should_exit` stops it."""
    app = service(judge, limits=limits, access=access)

    class Protocol(H11Protocol):
        def send_400_response(self, msg: str) -> None:
            app.state.metrics.requests.labels("other", "400").inc()
            super().send_400_response(msg)

    config = uvicorn.Config(
        app, http=Protocol, ws="none", lifespan="on", log_level="error", access_log=False,
        # clients are identified by the connection's address: any of them can claim to be a proxy
        proxy_headers=False, server_header=False,
        timeout_keep_alive=max(1, int(limits.timeout)),
        timeout_graceful_shutdown=int(2 * limits.timeout) + 1,
    )  # fmt: skip
    serving = uvicorn.Server(config)
    app.state.connections = serving.server_state.connections
    return serving


def run_until_signal(serving: uvicorn.Server, opened: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM, then answer the requests under way, and return.

    Args:
        serving: from `server`.
        opened: from `listening_socket`; closed at the end.
    """
    # after its shutdown uvicorn raises the signals that it caught again; they are ignored here
    before = {s: signal.signal(s, lambda *_: None) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        serving.run(sockets=[opened])
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
        opened.close()
