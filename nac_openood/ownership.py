"""Who owns a file: a cache that others can write to may hold what they put there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from nac_openood.errors import FileError

_ROOT = 0


def refuse_foreign(path: Path) -> None:
    """Raise if a file, or the folder it lies in, is not the user's own to trust.

    Both must belong to the user or to root, links included. The file must not be writable by
    everybody. In a folder that is, such as /tmp, files of the user are safe if its sticky bit is
    set.

    Raises:
        FileError: why the file is not used.
    """
    if not hasattr(os, "geteuid"):  # Windows has no such owners
        return
    trusted = (os.geteuid(), _ROOT)
    for each in (path.parent, path):
        for status in (each.lstat(), each.stat()):
            if status.st_uid not in trusted:
                raise FileError(f"{each} belongs to another user (number {status.st_uid}).")
    if path.stat().st_mode & stat.S_IWOTH:
        raise FileError(f"{path} can be written by every user.")
    folder = path.parent.stat().st_mode
    if folder & stat.S_IWOTH and not folder & stat.S_ISVTX:
        raise FileError(f"every user can replace files in {path.parent}.")
