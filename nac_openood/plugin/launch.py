"""Run OpenOOD's own scripts, unmodified, with `compat` applied and NAC registered.

If `torchrun` starts several processes, each of them runs the script. Passes over data, of NAC and
of any other postprocessor, are shared batch by batch, and all processes get the complete results.
The first process writes the files.
"""

from __future__ import annotations

import operator
import os
import runpy
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Optional, Sequence

from nac_openood.distributed import is_main, world
from nac_openood.errors import NACError
from nac_openood.plugin import compat as compat_patches
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
    path = Path(os.path.abspath(script))  # noqa: PTH100 (resolve() would follow links)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise NACError(
            f"Expected a script of OpenOOD such as scripts/eval_ood.py, but {script} {what} (in "
            f"{Path.cwd()}). Change to the folder of your OpenOOD clone, or give the full path."
        )
    with ExitStack() as restored:
        # first, because OpenOOD cannot be imported on NumPy 2 without it
        if compat:
            restored.enter_context(compat_patches.compat())
        _as_python_would(path, args, restored)
        if register():  # False if the caller has registered already
            restored.callback(unregister)
        replaced = _share_evaluation(restored) if world().size > 1 else {}
        try:
            runpy.run_path(str(path), init_globals=replaced, run_name="__main__")
        except SystemExit as stop:
            if stop.code is None or isinstance(stop.code, int):
                return stop.code or 0
            sys.stderr.write(f"{stop.code}\n")
            return 1
        except Exception as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename != str(path):
                trace = trace.tb_next  # leave out our own frames
            sys.excepthook(type(error), error.with_traceback(trace), trace)
            return 1
    return 0


def openood_root(script: Path) -> Optional[Path]:
    """The OpenOOD tree that contains `script`, or None.

    The path is tried before its resolved form, because OpenOOD's scripts look for their data
    relative to the former.
    """
    for path in (script, script.resolve()):
        for folder in path.parents:
            if (folder / "openood" / "__init__.py").is_file():
                return folder
    return None


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


def _share_evaluation(undo: ExitStack) -> dict[str, Any]:
    """Share the passes of OpenOOD's evaluator among the processes until `undo` is closed.

    Returns:
        Replacements of builtins in the script.
    """
    import numpy as np
    import torch
    from openood.evaluation_api.evaluator import Evaluator
    from openood.postprocessors.base_postprocessor import BasePostprocessor

    from nac_openood.detector.batches import map_shards

    infer, classify = BasePostprocessor.inference, Evaluator._classifier_inference

    def columns(step: str, loader: Any, work: Callable[[Any], Any]) -> Any:
        """The results of `work` on loaders of one batch each, column by column."""
        return zip(
            *map_shards(step, loader, lambda b: work([{"data": b.data, "label": b.labels()}]))
        )

    def inference(self: Any, net: Any, data_loader: Any, progress: bool = True) -> Any:
        found = columns("inference", data_loader, lambda one: infer(self, net, one, False))
        return tuple(map(np.concatenate, found))

    def classification(self: Any, data_loader: Any, msg: str = "", progress: bool = True) -> Any:
        found = columns("accuracy", data_loader, lambda one: classify(self, one, msg, False))
        return tuple(map(torch.cat, found))

    patch = compat_patches.replace_attribute
    patch(BasePostprocessor, "inference", inference, undo)
    patch(Evaluator, "_classifier_inference", classification, undo)
    return {} if is_main() else _discard_writes(undo)


def _discard_writes(undo: ExitStack) -> dict[str, Any]:
    """Keep OpenOOD from writing files, and from failing if a folder exists already."""
    import pandas as pd

    made = os.makedirs

    def discarding_open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wax"):
            file, mode = os.devnull, mode.replace("x", "w")
        return open(file, mode, *args, **kwargs)  # noqa: PTH123

    patch = compat_patches.replace_attribute
    patch(os, "makedirs", lambda name, *args, **kwargs: made(name, exist_ok=True), undo)
    patch(pd.DataFrame, "to_csv", lambda *args, **kwargs: None, undo)
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "openood":
            patch(module, "open", discarding_open, undo)
    return {"open": discarding_open}
