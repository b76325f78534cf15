"""One command at a time in a folder of results.

Two comparisons in one folder would remove and overwrite each other's notes. The system takes a lock
away when the process that holds it ends, however it ends, so there are no stale ones. Nothing is
written to the folder.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Union

from nac_openood.distributed import agreed, is_main
from nac_openood.errors import FileError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

#: Folders that this process has locked: how often, and the open folder.
_held: dict[Path, tuple[int, int]] = {}
_mutex = threading.Lock()


@contextmanager
def locked(folder: Union[str, Path]) -> Iterator[None]:
    """Keep other processes that ask for it out of a folder, for as long as the block runs.

    A process may lock a folder that it has locked already. Where several processes work together,
    the first one has the lock. Where the file system has no locks, there is none.

    Args:
        folder: it must exist.

    Raises:
        FileError: another process has locked the folder.
    """
    resolved = Path(folder).resolve()
    agreed("lock the folder", lambda: _lock(resolved))
    try:
        yield
    finally:
        if is_main():
            _unlock(resolved)


def _lock(folder: Path) -> None:
    with _mutex:
        times, opened = _held.get(folder, (0, -1))
        if not times and fcntl is not None:
            opened = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(opened)
                raise FileError(
                    f"another command is at work in {folder}. Wait until it has ended, or choose "
                    "another folder with `out`."
                ) from None
            except OSError:  # a file system without locks
                pass
        _held[folder] = times + 1, opened


def _unlock(folder: Path) -> None:
    with _mutex:
        times, opened = _held.pop(folder)
        if times > 1:
            _held[folder] = times - 1, opened
        elif opened >= 0:
            os.close(opened)
