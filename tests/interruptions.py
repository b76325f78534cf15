"""Faults at every step of something that writes: the disk is full, Ctrl-C, the process is killed.

Python tells audit hooks of each file that is opened, renamed or removed before it happens. A hook
that raises is a fault at exactly that step, in the real code and on the real file system.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

_STEPS = ("open", "os.rename", "os.remove", "os.chmod", "os.mkdir", "os.rmdir", "os.link",
          "tempfile.mkstemp", "tempfile.mkdtemp", "shutil.rmtree")  # fmt: skip
_armed: Optional[_Fault] = None
_hooked = False


class _Fault:
    def __init__(self, folder: Path, step: int, strike: Callable[[], None]) -> None:
        self.folder, self.left, self.strike = str(folder), step, strike

    def at(self, arguments: tuple[Any, ...]) -> None:
        path = arguments[0]
        if isinstance(path, int) or not os.fsdecode(path).startswith(self.folder):
            return
        self.left -= 1
        if self.left == 0:
            self.strike()


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _armed is not None and event in _STEPS:
        writes = event != "open" or arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes:
            _armed.at(arguments)


@contextmanager
def fault(folder: Path, step: int, strike: Callable[[], None]) -> Iterator[_Fault]:
    """Strike at the `step`-th time that something is changed in a folder."""
    global _armed, _hooked
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked = True
    _armed = _Fault(folder, step, strike)
    try:
        yield _armed
    finally:
        _armed = None


def full_disk() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def ctrl_c() -> None:
    raise KeyboardInterrupt


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def small_files(most: int) -> Iterator[None]:
    """No file may become larger than this, as on a disk that is nearly full."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def in_a_child(work: Callable[[], None]) -> int:
    """Do something in a forked process; returns its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
