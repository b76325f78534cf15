"""One case of a fuzz run: something is damaged and used, and what happens is judged.

Nothing but a `NACError` may be raised; nothing may be written outside of the folder of the case,
no program started, no pickled class looked up; and it must end in time.
"""

import contextlib
import os
import signal
import traceback
import warnings
from pathlib import Path
from random import Random
from typing import Any, Callable, Iterator, NamedTuple, Union

from interruptions import audited

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
GOOD = (REFUSED, IDENTICAL, VALID, HEALED)
SECONDS = 300.0


class Outcome(NamedTuple):
    """What happened in a case, with details where it is not all right."""

    verdict: str
    details: str = ""


#: Damages a copy in a folder, uses it, and returns a verdict or an outcome.
Case = Callable[[Random, Path], Union[str, Outcome]]


class Target(NamedTuple):
    """Something that reads what may be damaged.

    Args:
        name: its name, from which cases are drawn.
        tried: what is changed, for the table.
        weight: how often it is chosen, relative to others.
        prepare: makes in a folder what all cases share, and returns the case.
    """

    name: str
    tried: str
    weight: int
    prepare: Callable[[Path], Case]


class _OutOfTime(BaseException):
    """Not an `Exception`, so that no code mistakes it for an error of its own."""


def attempt(name: str, case: Case, seed: int, folder: Path) -> Outcome:
    """Run a case. The same name and seed give the same case."""
    rng, seen = Random(f"{name} {seed}"), []
    folder.mkdir(parents=True)
    try:
        with _limited(SECONDS), _watched(folder, seen), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = case(rng, folder)
        outcome = Outcome(found) if isinstance(found, str) else found
    except NACError as error:
        outcome = Outcome(REFUSED) if str(error).strip() else Outcome(FOREIGN, "an empty message")
    except _OutOfTime:
        outcome = Outcome(HANG, traceback.format_exc())
    except (Exception, SystemExit):
        outcome = Outcome(FOREIGN, traceback.format_exc())
    return Outcome(OUTSIDE, seen[0]) if seen else outcome


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


_STARTED = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "pickle.find_class")
_CHANGED = ("os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.symlink", "shutil.rmtree")


def _watched(folder: Path, seen: list[str]) -> Any:
    """Note files that are written elsewhere, programs that are started, pickles that are read."""
    root = os.path.realpath(folder)

    def allowed(path: Any) -> bool:
        if isinstance(path, int):
            return True
        found = os.path.realpath(os.fsdecode(path))
        # torch makes a folder of its own when some of its parts are first imported
        others = "__pycache__" in found or "torchinductor" in found
        inside = found == root or found.startswith(root + os.sep)
        return inside or others or found.startswith(("/dev/", "/proc/"))

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
            return
        paths = arguments[: 2 if event == "os.rename" else 1]
        if event == "os.symlink":
            paths = arguments[1:2]
        elif event in ("os.remove", "os.rmdir") and arguments[1] != -1:
            return  # relative to a folder that shutil.rmtree has named before
        changed = event == "open" or event in _CHANGED
        if event in _STARTED or (changed and not all(map(allowed, paths))):
            seen.append(f"{event} {arguments[:2]!r}")

    return audited(audit)
