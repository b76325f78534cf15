"""Errors that users may see. Each message says what was expected, what was found and what to do."""

from __future__ import annotations

from typing import Sequence


class NACError(ValueError):
    """Something about the input is wrong; the message says what, and how to fix it."""


class NotFittedError(NACError):
    """The detector was used before it was fitted or calibrated."""


class ProbeError(NACError):
    """A layer of the network cannot be read."""


class FileError(NACError):
    """A saved file is damaged, newer than this package, or belongs to something else."""


def error_text(error: Exception) -> str:
    """An error as one line of text, with its class unless it is a `NACError`."""
    text = " ".join(str(error).split())
    return text if isinstance(error, NACError) else f"{type(error).__name__}: {text}"


def why_unreadable(error: BaseException) -> str:
    """Why a file could not be read or written, in a few words without a full stop."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return str(getattr(error, "strerror", None) or error).rstrip(".")


def some(names: Sequence[object], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - most
    return ", ".join(map(str, names[:most])) + (f" and {more} more" if more > 0 else "")


def first_line(error: Exception) -> str:
    """The first line of an error's message; its class if there is no message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
