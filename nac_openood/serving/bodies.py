"""Reading the body of a request: no more than is allowed, no longer than is allowed."""

from __future__ import annotations

import asyncio
from typing import AsyncGenerator, NamedTuple

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from nac_openood.serving.limits import Limits
from nac_openood.serving.refused import Refused

_HINT = (
    "Send one image as the body with its Content-Type (image/png, image/jpeg, ...), or several as "
    "the files of a multipart/form-data form."
)


class Upload(NamedTuple):
    """An image as it was sent."""

    name: str
    content: bytes


class _InMemory(MultiPartParser):
    """Files of strangers are never written to disk; their total size is limited anyway."""

    spool_max_size = 2**62


async def uploads(request: Request, limits: Limits) -> list[Upload]:
    """The images of a request, none of them empty.

    Raises:
        Refused: with a status 4xx.
        ClientDisconnect: nobody is there any more.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    form = kind == "multipart/form-data"
    if not form and not kind.startswith("image/") and kind != "application/octet-stream":
        raise Refused(415, f"the Content-Type is {kind or 'missing'}. {_HINT}")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "compressed bodies are not accepted: send the image as it is.")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limits.max_bytes:
        raise _too_long(limits)
    try:
        reading = _form(request, limits) if form else _one(request, limits)
        found = await asyncio.wait_for(reading, limits.timeout)
    except asyncio.TimeoutError:
        raise Refused(408, f"the request did not arrive within {limits.timeout:g} s.") from None
    for upload in found:
        if not upload.content:
            raise Refused(400, f"{upload.name or 'the body'} is empty. {_HINT}")
    return found


async def _one(request: Request, limits: Limits) -> list[Upload]:
    content = b"".join([chunk async for chunk in _limited(request, limits)])
    return [Upload(request.query_params.get("path", ""), content)]


async def _form(request: Request, limits: Limits) -> list[Upload]:
    parser = _InMemory(
        request.headers, _limited(request, limits), max_files=limits.max_images, max_fields=0
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if "Too many files" in error.message:
            raise Refused(413, f"more than {limits.max_images} images in a request.") from error
        if "Too many fields" in error.message:
            raise Refused(400, f"a part of the form is no file. {_HINT}") from error
        raise Refused(400, f"the form cannot be read: {error.message}") from error
    found = []
    for _, part in form.multi_items():
        assert isinstance(part, UploadFile)  # other parts were refused
        found.append(Upload(part.filename or "", await part.read()))
    await form.close()
    if not found:
        raise Refused(400, f"the form holds no file. {_HINT}")
    return found


async def _limited(request: Request, limits: Limits) -> AsyncGenerator[bytes, None]:
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limits.max_bytes:
            raise _too_long(limits)
        yield chunk


def _too_long(limits: Limits) -> Refused:
    return Refused(413, f"the body is longer than the {limits.max_bytes:,} bytes accepted.")
