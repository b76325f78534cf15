"""What lies at a path.

Unlike `pathlib`, which raises `PermissionError` where a folder may not be searched, these functions
raise an error that users understand.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Union

from nac_openood.errors import FileError, why_unreadable

PathLike = Union[str, "os.PathLike[str]"]


def is_file(path: PathLike) -> bool:
    """Whether a path leads to a regular file."""
    return stat.S_ISREG(mode_of(path))


def is_folder(path: PathLike) -> bool:
    """Whether a path leads to a folder."""
    return stat.S_ISDIR(mode_of(path))


def entries(folder: PathLike) -> list[Path]:
    """What lies in a folder, sorted."""
    try:
        return sorted(Path(folder).iterdir())
    except OSError as error:
        raise FileError(f"cannot read the folder {folder}: {why_unreadable(error)}.") from error


def mode_of(path: PathLike) -> int:
    """The type and permissions of what a path leads to, as in `os.stat`; 0 if there is nothing.

    Raises:
        FileError: that cannot be told, e.g. because a folder may not be searched.
    """
    try:
        return os.stat(path).st_mode  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise FileError(f"cannot access {path}: {why_unreadable(error)}.") from error
