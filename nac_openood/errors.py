"""Errors that users may see. Each message says what was expected, what was found and what to do."""

from __future__ import annotations


class NACError(ValueError):
    """Something about the input is wrong; the message says what, and how to fix it."""


class NotFittedError(NACError):
    """The detector was asked before it was fitted or calibrated."""


class ProbeError(NACError):
    """A layer of the network cannot be read."""


class FileError(NACError):
    """A saved file is damaged, newer than this package, or belongs to something else."""


def error_text(error: Exception) -> str:
    """An error on one line; an error that is not ours says of which class it is."""
    text = " ".join(str(error).split())
    return text if isinstance(error, NACError) else f"{type(error).__name__}: {text}"


def why_unreadable(error: Exception) -> str:
    """Why a text file could not be read, in a few words.

    Args:
        error: an `OSError` or a `UnicodeDecodeError`.
    """
    return getattr(error, "strerror", None) or "it is not UTF-8 text"
