"""One case of a fuzz run: something is damaged and used, and what happens is judged.

Nothing but a `NACError` may be raised; nothing may be written outside of the folder of the case,
no program started, no pickled class looked up; and it must end in time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from random import Random
from typing import Any, Iterator, NamedTuple, Optional

from nac_openood.errors import NACError

#: What may happen. Only the first four are all right.
REFUSED = "refused"
IDENTICAL = "identical"
VALID = "valid"
HEALED = "healed"
FOREIGN = "foreign"
SILENT = "silent"
OUTSIDE = "outside"
HANG = "hang"
VERDICTS = (REFUSED, IDENTICAL, VALID, HEALED, FOREIGN, SILENT, OUTSIDE, HANG)
GOOD = VERDICTS[:4]
SECONDS = 300.0


class Outcome(NamedTuple):
    """What happened in a case, and more about it where it is not all right."""

    verdict: str
    told: str = ""


class Target(ABC):
    """Something that reads what may be damaged.

    Args:
        folder: for what all cases share; filled once.
    """

    #: Its name, and what is changed, for the table.
    name: str
    tried: str
    #: How often it is chosen, relative to others.
    weight: int = 1

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def case(self, rng: Random, place: Path) -> Any:
        """Damage a copy in `place`, use it, and return a verdict (and what to tell)."""


class _OutOfTime(BaseException):
    """Not an `Exception`: nobody may take it for an error of their own."""


def attempt(target: Target, seed: int, place: Path) -> Outcome:
    """Run a case. The same seed gives the same case."""
    rng = Random(f"{target.name} {seed}")
    place.mkdir(parents=True)
    watch = _Watch(place)
    try:
        with _limited(SECONDS), watch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = target.case(rng, place)
        outcome = Outcome(found) if isinstance(found, str) else Outcome(*found)
    except NACError as error:
        outcome = Outcome(REFUSED) if str(error).strip() else Outcome(FOREIGN, "an empty message")
    except _OutOfTime:
        outcome = Outcome(HANG, traceback.format_exc())
    except (Exception, SystemExit):
        outcome = Outcome(FOREIGN, traceback.format_exc())
    return Outcome(OUTSIDE, watch.seen[0]) if watch.seen else outcome


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def end(*_: Any) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _Watch:
    """Notes files that are written elsewhere, programs that are started, pickles that are read."""

    current: Optional[_Watch] = None
    hooked = False

    def __init__(self, place: Path) -> None:
        self.place, self.seen = str(place.resolve()), []

    def __enter__(self) -> _Watch:
        if not _Watch.hooked:  # a hook cannot be taken away again
            sys.addaudithook(_audit)
            _Watch.hooked = True
        _Watch.current = self
        return self

    def __exit__(self, *_: object) -> None:
        _Watch.current = None

    def allows(self, path: Any) -> bool:
        """Whether something may be written there."""
        if isinstance(path, int):
            return True
        found = os.path.realpath(os.fsdecode(path))
        inside = found == self.place or found.startswith(self.place + os.sep)
        # torch makes a folder of its own when some of its parts are first imported
        others = "__pycache__" in found or "torchinductor" in found
        return inside or others or found.startswith(("/dev/", "/proc/"))


_STARTED = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "pickle.find_class")
_CHANGED = ("os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.symlink", "shutil.rmtree")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    watch = _Watch.current
    if watch is None:
        return
    if event == "open":
        path, _, flags = arguments
        if flags & (os.O_WRONLY | os.O_RDWR) and not watch.allows(path):
            watch.seen.append(f"wrote {path!r}")
    elif event in _CHANGED and not all(map(watch.allows, _paths(event, arguments))):
        watch.seen.append(f"{event} {arguments!r}")
    elif event in _STARTED:
        watch.seen.append(f"{event} {arguments[:1]!r}")


def _paths(event: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    if event == "os.symlink":
        return arguments[1:2]
    if event in ("os.remove", "os.rmdir") and arguments[1] != -1:
        return ()  # relative to a folder that shutil.rmtree has told before
    return arguments[:2] if event == "os.rename" else arguments[:1]
