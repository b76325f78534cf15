"""Register our rules as OpenOOD postprocessors, without changing its files; can be undone."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Optional

from nac_openood.core.rule import rule_names
from nac_openood.detector.config import CONFIG_ROOT
from nac_openood.errors import NACError
from nac_openood.plugin.compat import apply_compat, remove_compat
from nac_openood.plugin.source import import_failure

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
            undo.callback(remove_compat, apply_compat())
        try:
            _replace_lookups(undo)
        except ImportError as error:
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
                UserWarning,
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
        for module in [m for n, m in sys.modules.items() if n.split(".")[0] == "openood"]:
            for name, value in list(vars(module).items()):
                if value is original:
                    setattr(module, name, replacement)
                    undo.callback(setattr, module, name, original)


def _configured(config_root: Path, rule: str, id_data: str) -> Any:
    """The postprocessor of a rule, with the user's config, the shipped one, or automatic layers."""
    from nac_openood.plugin.postprocessor import NACPostprocessor, read_openood_config

    own = config_root / "postprocessors" / f"{rule}.yml"
    shipped = CONFIG_ROOT / "postprocessors" / own.name
    document: Any = {"postprocessor": {"name": rule, "APS_mode": False}}
    if os.path.lexists(own):
        document = read_openood_config(own, rule)
    elif shipped.is_file():
        document = read_openood_config(shipped, rule)
    found = NACPostprocessor({**document, "dataset": {"name": id_data}})
    if os.path.lexists(own):
        # absolute: a pickle may be set up from another working directory
        found.config_file = str(own.resolve())
    return found
