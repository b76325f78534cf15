"""Run OpenOOD's own scripts, unmodified, with `compat` applied and NAC registered."""

from __future__ import annotations

import operator
import os
import runpy
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Optional, Sequence

from nac_openood.errors import NACError
from nac_openood.plugin import compat as compat_patches
from nac_openood.plugin.parallel import share_evaluation
from nac_openood.plugin.register import register, unregister


def run_script(script: str, args: Sequence[str], *, compat: bool = True) -> int:
    """Run `python script args...` in this process with NAC registered, then restore everything.

    The script sees `__name__ == '__main__'`, its own `sys.argv`, and the `sys.path` that Python
    would give it plus the root of its OpenOOD tree. The working directory stays the caller's.

    Args:
        script: the path of the script.
        args: its arguments.
        compat: apply the patches of `nac_openood.plugin.compat` that this machine needs.

    Returns:
        The exit code: 0, what the script passed to `sys.exit`, or 1 after an exception, whose
        traceback is written to stderr.

    Raises:
        NACError: the script does not exist, or OpenOOD cannot be imported.
    """
    path = _existing(script)
    with ExitStack() as restored:
        # first, because OpenOOD cannot be imported on NumPy 2 without it
        if compat:
            restored.enter_context(compat_patches.compat())
        _as_python_would(path, args, restored)
        if register():  # unless the caller has done so already
            restored.callback(unregister)
        share_evaluation(restored)
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
    """The OpenOOD tree that contains `script`, or None.

    The path as given is tried first, then the one behind symbolic links, because OpenOOD's
    scripts look for their data relative to the path as given.
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
        f"Expected a script of OpenOOD such as scripts/eval_ood.py, but {script} {what} (in "
        f"{Path.cwd()}). Change to the folder of your OpenOOD clone, or give the full path."
    )


def _as_python_would(path: Path, args: Sequence[str], undo: ExitStack) -> None:
    """Set `sys.argv` and `sys.path` as `python path args...` does, until `undo` is closed."""
    undo.callback(setattr, sys, "argv", sys.argv)
    undo.callback(operator.setitem, sys.path, slice(None), list(sys.path))
    sys.argv = [str(path), *args]
    if not getattr(sys.flags, "safe_path", False):  # python -P; the flag is new in 3.11
        sys.path.insert(0, str(path.resolve().parent))
    root = openood_root(path)
    if root is not None and str(root) not in sys.path:
        # last, as OpenOOD's scripts do it themselves: an installed OpenOOD takes precedence
        sys.path.append(str(root))


def _exit_code(stop: SystemExit) -> int:
    """The exit code of `sys.exit(code)`: None is 0; a message goes to stderr and is 1."""
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code
    sys.stderr.write(f"{stop.code}\n")
    return 1


def _from_script(trace: Optional[TracebackType], script: str) -> Optional[TracebackType]:
    """The part of a traceback that starts in `script`, without our own frames above it."""
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    return trace
