"""Faults at every step of something that writes: the disk is full, Ctrl-C, the process is killed.

Python tells audit hooks of each file that is opened, renamed or removed before it happens. A hook
that raises is a fault at exactly that step, in the real code and on the real file system.
"""

import errno
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

_STEPS = ("open", "os.rename", "os.remove", "os.chmod", "os.mkdir", "os.rmdir", "os.link",
          "tempfile.mkstemp", "tempfile.mkdtemp", "shutil.rmtree")  # fmt: skip
#: Is called with each event; hooks cannot be removed again, so there is one.
_callback: Optional[Callable[[str, tuple[Any, ...]], None]] = None
_hooked = False


@contextmanager
def audited(callback: Callable[[str, tuple[Any, ...]], None]) -> Iterator[None]:
    """Call a function with the name and arguments of every event that Python audits."""
    global _callback, _hooked
    if not _hooked:
        sys.addaudithook(lambda *event: None if _callback is None else _callback(*event))
        _hooked = True
    _callback = callback
    try:
        yield
    finally:
        _callback = None


@contextmanager
def fault(folder: Path, step: int, strike: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Strike at the `step`-th time that something is changed in a folder; yields whether it did."""
    left = step

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        reads = event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event not in _STEPS or reads or isinstance(arguments[0], int):
            return
        if os.fsdecode(arguments[0]).startswith(str(folder)):
            left -= 1
            if left == 0:
                strike()

    with audited(count):
        yield lambda: left <= 0


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
