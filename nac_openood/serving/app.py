"""The HTTP application around a judge."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Optional

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException

from nac_openood.__about__ import __version__
from nac_openood.serving.access import Access
from nac_openood.serving.judge import Judge
from nac_openood.serving.limits import Limits
from nac_openood.serving.linger import Linger
from nac_openood.serving.middleware import Reception
from nac_openood.serving.page import drop_page
from nac_openood.serving.refused import Refused
from nac_openood.serving.schema import ERROR_ANSWERS, SCORE_BODY, Answers
from nac_openood.serving.scoring import Scoring

_DESCRIPTION = """\
Says of images which class a network sees, and whether to believe it: `score` (higher = more like
the training data), `p_value` (how unusual the score is) and `decision` (`in` or `out`).
"""


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

    made: FastAPI = FastAPIOffline(
        title="nac-openood", version=__version__, description=_DESCRIPTION, lifespan=lifespan,
        redoc_url=None,
    )  # fmt: skip
    _add_scoring(made, scoring)
    _add_state(made, scoring)
    made.add_exception_handler(Refused, _refused)
    made.add_exception_handler(HTTPException, _not_found)
    # the last one added is the first to see a request
    made.add_middleware(Linger)
    made.add_middleware(Reception, access=access or Access(), metrics=scoring.metrics)
    return made


def _add_scoring(app: FastAPI, scoring: Scoring) -> None:
    @app.post("/score", openapi_extra=SCORE_BODY, responses=ERROR_ANSWERS, response_model=Answers)
    async def score(request: Request) -> Response:
        """Judge one image, sent as the body, or several, sent as the files of a form.

        The files may have any field names. The order of the results is that of the images.
        """
        return JSONResponse({"results": await scoring.results(request)})

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return drop_page()


def _add_state(app: FastAPI, scoring: Scoring) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the service is alive."""
        return {"status": "ok", "version": __version__}

    @app.get("/ready", responses={503: ERROR_ANSWERS[503]})
    async def ready() -> dict[str, str]:
        """Whether images are taken."""
        if not scoring.batcher.running:
            raise Refused(503, "the service is starting or stopping.", retry_after=1)
        return {"status": "ready"}

    @app.get("/metrics", response_class=Response)
    async def metrics(request: Request) -> Response:
        """Numbers in the format of Prometheus."""
        content, kind = scoring.metrics.page(request.headers.get("accept", ""))
        return Response(content, media_type=kind)


async def _refused(_: Request, error: Any) -> Response:
    return error.response()


async def _not_found(_: Request, error: Any) -> Response:
    """Errors of the framework, such as an unknown path, in our words."""
    return JSONResponse(
        {"error": f"{error.detail}. See /docs."}, error.status_code, headers=error.headers
    )
