"""Who owns a file: a cache that others can write to may hold what they put there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from nac_openood.errors import FileError

_ROOT = 0


def refuse_foreign(path: Path) -> None:
    """Raise if a file, or the folder it lies in, is not the user's own to trust.

    Both must belong to the user or to root, links included. Nobody else may write to the file.
    In a folder that others may write to, such as /tmp, files of the user are safe if its sticky
    bit is set.

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
    if _others_write(path.stat()):
        raise FileError(f"{path} can be written by other users.")
    folder = path.parent.stat()
    if _others_write(folder) and not folder.st_mode & stat.S_ISVTX:
        raise FileError(
            f"other users can replace files in {path.parent}: run chmod go-w {path.parent}."
        )


def _others_write(found: os.stat_result) -> bool:
    # many systems give each user a group of the same number, in which nobody else is
    own_group = found.st_gid in (os.geteuid(), _ROOT)
    return bool(found.st_mode & (stat.S_IWOTH if own_group else stat.S_IWOTH | stat.S_IWGRP))
