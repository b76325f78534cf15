"""What the OpenAPI page says about requests and responses."""

from __future__ import annotations

from typing import Any, Literal, Optional

from pydantic import BaseModel, Field


class Result(BaseModel):
    """What is said about one image: the columns of `nac-openood score`."""

    path: str = Field(description="name of the file, or the query parameter `path`")
    label: str = Field(alias="class", description="the network's class")
    confidence: Optional[float] = Field(description="softmax probability of that class")
    score: Optional[float] = Field(
        description="higher = more like the training data; null if it cannot be computed"
    )
    p_value: Optional[float] = Field(
        description="share of in-distribution images that are at least as unusual"
    )
    decision: Literal["in", "out"] = Field(description="`out` where p_value <= alpha")


class Answers(BaseModel):
    """A result per image, in the order of the images."""

    results: list[Result]


class Error(BaseModel):
    """Why a request was refused."""

    error: str


#: The responses of /score that are no answer.
ERROR_ANSWERS: dict[Any, dict[str, Any]] = {
    status: {"model": Error, "description": told}
    for status, told in {
        400: "empty, truncated or damaged image; a form that cannot be read",
        401: "token missing or wrong",
        403: "a page of another origin",
        408: "the body did not arrive in time",
        413: "too many bytes, pixels or images",
        415: "not an image of an accepted format",
        421: "the Host is not one of this service's names",
        429: "too many images per second from this client",
        500: "the network failed on the image",
        503: "too many requests or images at the same time",
        504: "no answer in time",
    }.items()
}

_FILE = {"type": "string", "format": "binary"}
#: The body of /score, which is read by hand to keep to the limits.
SCORE_BODY: dict[str, Any] = {
    "parameters": [
        {
            "name": "path", "in": "query", "schema": {"type": "string"},
            "description": "name to give the image in the result, if it is sent as the body",
        }
    ],
    "requestBody": {
        "required": True,
        "content": {
            "image/*": {"schema": _FILE},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"image": {"type": "array", "items": _FILE}},
                }
            },
        },
    },
}  # fmt: skip
