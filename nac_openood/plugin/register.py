"""Register our rules as OpenOOD postprocessors, and run OpenOOD's own scripts with them.

OpenOOD's files are not changed, and everything can be undone.

If `torchrun` starts several processes, each of them runs the script. Passes over data, of NAC and
of any other postprocessor, are shared batch by batch, and all processes get the complete results.
The first process writes the files.
"""

from __future__ import annotations

import functools
import operator
import os
import runpy
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Optional, Sequence

from nac_openood.core.rule import rule_names
from nac_openood.detector.config import CONFIG_ROOT
from nac_openood.distributed import is_main, world
from nac_openood.errors import NACError
from nac_openood.plugin import compat as patches
from nac_openood.plugin.source import IMPORT_ERRORS, import_failure

#: What undoes `register`; None if it was not called.
_undo: Optional[ExitStack] = None


def register(compat: bool = False) -> bool:
    """Register every rule of this package as an OpenOOD postprocessor, e.g. 'nac'.

    Afterwards `Evaluator(..., postprocessor_name='nac')`, OpenOOD's scripts and its pipelines
    accept the name. Settings come from `postprocessors/nac.yml` in the caller's `config_root` if
    that file exists; otherwise they are chosen by ID dataset and network. A postprocessor of
    OpenOOD with the same name is kept.

    Args:
        compat: also apply the patches that OpenOOD needs on this machine; see
            `nac_openood.plugin.compat`.

    Returns:
        Whether anything changed; a second call changes nothing.

    Raises:
        NACError: OpenOOD or one of its dependencies cannot be imported.
    """
    global _undo
    if _undo is not None:
        return False
    with ExitStack() as undo:
        if compat:
            undo.enter_context(patches.compat())
        try:
            _replace_lookups(undo)
        except IMPORT_ERRORS as error:
            raise NACError(import_failure(error)) from error
        _undo = undo.pop_all()
    return True


def unregister() -> None:
    """Undo `register`; does nothing if it was not called."""
    global _undo
    if _undo is not None:
        _undo.close()
        _undo = None


def _replace_lookups(undo: ExitStack) -> None:
    """Replace the functions by which OpenOOD finds postprocessors, and add ours to its table."""
    import openood.evaluation_api.postprocessor as api
    import openood.postprocessors.utils as pipelines

    from nac_openood.plugin.postprocessor import NACPostprocessor

    taken = set(api.postprocessors)
    for name in rule_names():
        if name in taken:
            warnings.warn(
                f"OpenOOD has a postprocessor '{name}' of its own, which is kept. To use this one, "
                "pass Evaluator(postprocessor=NACPostprocessor(config)).",
                stacklevel=4,
            )
        else:
            api.postprocessors[name] = NACPostprocessor
            undo.callback(api.postprocessors.pop, name, None)

    def is_ours(name: str) -> bool:  # also a rule that is registered later
        return name not in taken and name in rule_names()

    by_evaluator, by_pipelines = api.get_postprocessor, pipelines.get_postprocessor

    @functools.wraps(by_evaluator)
    def for_evaluator(config_root: str, postprocessor_name: str, id_data_name: str) -> Any:
        if is_ours(postprocessor_name):
            return _configured(Path(config_root), postprocessor_name, id_data_name)
        return by_evaluator(config_root, postprocessor_name, id_data_name)

    @functools.wraps(by_pipelines)
    def for_pipelines(config: Any) -> Any:
        ours = is_ours(config.postprocessor.name)
        return NACPostprocessor(config) if ours else by_pipelines(config)

    for original, replacement in ((by_evaluator, for_evaluator), (by_pipelines, for_pipelines)):
        for module in _openood_modules():
            for name, value in list(vars(module).items()):
                if value is original:
                    patches.replace_attribute(module, name, replacement, undo)


def _openood_modules() -> list[Any]:
    return [module for name, module in sys.modules.items() if name.split(".")[0] == "openood"]


def _configured(config_root: Path, rule: str, id_data: str) -> Any:
    """The postprocessor of a rule, with the user's config, the shipped one, or automatic layers."""
    from nac_openood.plugin.postprocessor import NACPostprocessor, read_openood_config

    own = config_root / "postprocessors" / f"{rule}.yml"
    shipped, is_own = CONFIG_ROOT / "postprocessors" / own.name, os.path.lexists(own)
    document: Any = {"postprocessor": {"name": rule, "APS_mode": False}}
    if is_own or shipped.is_file():
        document = read_openood_config(own if is_own else shipped, rule)
    found = NACPostprocessor({**document, "dataset": {"name": id_data}})
    if is_own:
        # absolute: a pickle may be set up from another working directory
        found.config_file = str(own.resolve())
    return found


# ---- OpenOOD's own scripts


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
            restored.enter_context(patches.compat())
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


def _as_python_would(path: Path, args: Sequence[str], undo: ExitStack) -> None:
    """Set `sys.argv` and `sys.path` as `python path args...` does, until `undo` is closed."""
    undo.callback(setattr, sys, "argv", sys.argv)
    undo.callback(operator.setitem, sys.path, slice(None), list(sys.path))
    sys.argv = [str(path), *args]
    sys.path.insert(0, str(path.resolve().parent))
    # the path as given comes first: OpenOOD's scripts look for data relative to it
    for root in (*path.parents, *path.resolve().parents):
        if (root / "openood" / "__init__.py").is_file():
            # last, as OpenOOD's scripts do it themselves: an installed OpenOOD takes precedence
            sys.path.append(str(root))
            return


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

    patches.replace_attribute(BasePostprocessor, "inference", inference, undo)
    patches.replace_attribute(Evaluator, "_classifier_inference", classification, undo)
    return {} if is_main() else _discard_writes(undo)


def _discard_writes(undo: ExitStack) -> dict[str, Any]:
    """Keep OpenOOD from writing files, and from failing if a folder exists already."""
    import pandas as pd

    make = functools.partial(os.makedirs, exist_ok=True)

    def discarding_open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wax"):
            file, mode = os.devnull, mode.replace("x", "w")
        return open(file, mode, *args, **kwargs)  # noqa: PTH123

    patches.replace_attribute(os, "makedirs", lambda name, *_, **__: make(name), undo)
    patches.replace_attribute(pd.DataFrame, "to_csv", lambda *_, **__: None, undo)
    for module in _openood_modules():
        patches.replace_attribute(module, "open", discarding_open, undo)
    return {"open": discarding_open}
