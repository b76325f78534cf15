"""The files in a folder: none is left out without a word, and links do not lead in circles."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Collection

from nac_openood.errors import NACError


def files_in(root: Path, suffixes: Collection[str]) -> list[str]:
    """The paths of files in a folder and its subfolders, relative to it and sorted.

    Links to folders are followed, as torchvision's `ImageFolder` does, but not those to a folder
    that they are in. A file that cannot be looked at, such as a broken link, is listed too.

    Args:
        root: the folder.
        suffixes: how the files end, in lower case.

    Raises:
        NACError: a folder cannot be read.
    """
    found = []
    above = {root: {root.resolve()}}
    # not rglob, which leaves out folders that it may not read without a word
    for place, folders, names in os.walk(root, onerror=_unreadable, followlinks=True):
        around = above.pop(Path(place))
        inside = {name: Path(place, name).resolve() for name in folders}
        folders[:] = [name for name in folders if inside[name] not in around]
        above.update({Path(place, name): around | {inside[name]} for name in folders})
        found += [Path(place, name) for name in names if Path(name).suffix.lower() in suffixes]
    return sorted(path.relative_to(root).as_posix() for path in found if _may_be_file(path))


def _unreadable(error: OSError) -> None:
    raise NACError(
        f"the folder {error.filename} cannot be read ({error.strerror}). Allow it, or leave the "
        "folder out."
    ) from error


def _may_be_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return True  # whoever reads it is told why that is impossible
