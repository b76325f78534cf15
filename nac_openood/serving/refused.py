"""Refused: why a request gets no answer, and the status that says whose fault it is."""

from __future__ import annotations

import math
from typing import Optional

from fastapi.responses import JSONResponse


class Refused(Exception):
    """A request is refused.

    Args:
        status: HTTP status.
        reason: a sentence for the client: what is wrong and what to do.
        retry_after: seconds after which to try again, if that may help.
    """

    def __init__(self, status: int, reason: str, *, retry_after: Optional[float] = None) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason
        self.headers: dict[str, str] = {}
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))
        if status == 401:
            self.headers["WWW-Authenticate"] = "Bearer"

    def response(self) -> JSONResponse:
        """What the client is told."""
        return JSONResponse({"error": self.reason}, self.status, headers=self.headers)
