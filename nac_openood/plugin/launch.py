"""OpenOOD's own scripts, unmodified, in this process: with `compat` applied and NAC registered."""

from __future__ import annotations

import os
import runpy
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Iterator, Optional, Sequence

from nac_openood.errors import NACError
from nac_openood.plugin import compat as compat_patches
from nac_openood.plugin.register import register, unregister


def run_script(script: str, args: Sequence[str], *, compat: bool = True) -> int:
    """Run `python script args...` here, with NAC known to OpenOOD, and restore everything after.

    The script sees `__name__ == '__main__'`, its own `sys.argv` and the `sys.path` Python would
    have given it, with the root of the OpenOOD tree it lies in added. The working directory is
    the caller's. Its output goes where the caller's goes.

    Args:
        script: the path of the script, as one would give it to `python`.
        args: its arguments.
        compat: apply the patches of `nac_openood.plugin.compat` that this machine needs.

    Returns:
        The exit code: 0, what the script gave to `sys.exit`, or 1 after an exception, whose
        traceback goes to stderr as Python would write it.

    Raises:
        NACError: there is no such script, or OpenOOD cannot be imported.
    """
    path = _existing(script)
    with ExitStack() as restored:
        # Patches first: on NumPy 2, OpenOOD cannot be imported without them.
        if compat:
            restored.enter_context(compat_patches.compat())
        restored.enter_context(_as_python_would(path, args))
        restored.enter_context(_registered())
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as stop:
            return _exit_code(stop)
        except Exception as error:
            trace = _from_script(error.__traceback__, str(path))
            sys.excepthook(type(error), error.with_traceback(trace), trace)
            return 1
    return 0


def openood_root(script: Path) -> Optional[Path]:
    """The OpenOOD tree that `script` lies in, or None.

    The path as given goes first, then the one behind symbolic links: OpenOOD's scripts look for
    their data beside the path as given.
    """
    given = Path(os.path.abspath(script))  # noqa: PTH100 (resolve() would follow the links)
    for path in (given, given.resolve()):
        for folder in path.parents:
            if (folder / "openood" / "__init__.py").is_file():
                return folder
    return None


def _existing(script: str) -> Path:
    path = Path(os.path.abspath(script))  # noqa: PTH100 (see openood_root)
    if path.is_file():
        return path
    what = "is a folder" if path.is_dir() else "does not exist"
    raise NACError(
        f"Expected a script of OpenOOD such as scripts/eval_ood.py, but {script} {what} (looked in "
        f"{Path.cwd()}). Change to the folder of your OpenOOD clone, or give the whole path."
    )


@contextmanager
def _as_python_would(path: Path, args: Sequence[str]) -> Iterator[None]:
    """`sys.argv` and `sys.path` of `python path args...`, until the block ends."""
    argv, search = sys.argv, list(sys.path)
    sys.argv = [str(path), *args]
    if not getattr(sys.flags, "safe_path", False):  # python -P; the flag is new in 3.11
        sys.path.insert(0, str(path.resolve().parent))
    root = openood_root(path)
    if root is not None and str(root) not in sys.path:
        # Last, as OpenOOD's scripts do it themselves: an installed OpenOOD keeps its precedence.
        sys.path.append(str(root))
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = search


@contextmanager
def _registered() -> Iterator[None]:
    """NAC is in OpenOOD's tables until the block ends; a caller's own registration stays."""
    changed = register()
    try:
        yield
    finally:
        if changed:
            unregister()


def _exit_code(stop: SystemExit) -> int:
    """What `python` would exit with: None is 0, a number itself, a message goes to stderr."""
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code
    sys.stderr.write(f"{stop.code}\n")
    return 1


def _from_script(trace: Optional[TracebackType], script: str) -> Optional[TracebackType]:
    """The part of a traceback that begins in `script`, without the frames that started it."""
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    return trace
