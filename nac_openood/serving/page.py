"""The page to drop images on: one file, which loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from fastapi.responses import HTMLResponse

_FILE = Path(__file__).parent / "assets" / "drop.html"


def drop_page() -> HTMLResponse:
    """The page, with a policy that lets it run its own script and talk to its own service only."""
    text, policy = _content()
    return HTMLResponse(text, headers={"Content-Security-Policy": policy})


@cache
def _content() -> tuple[str, str]:
    text = _FILE.read_text(encoding="utf-8")
    rules = [
        "default-src 'none'", "connect-src 'self'", "img-src blob: data:", "base-uri 'none'",
        "form-action 'none'", "frame-ancestors 'none'",
        f"script-src {_hash(text, 'script')}", f"style-src {_hash(text, 'style')}",
    ]  # fmt: skip
    return text, "; ".join(rules)


def _hash(text: str, tag: str) -> str:
    """The source expression that allows the one element of this kind."""
    (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    digest = hashlib.sha256(inside.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
