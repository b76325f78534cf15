"""Make our rules known to OpenOOD as postprocessors, without changing its files; can be undone."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Mapping, Optional

from nac_openood.core.rules import rule_names
from nac_openood.detector.config import NACConfig
from nac_openood.detector.presets import CONFIG_ROOT
from nac_openood.errors import NACError
from nac_openood.plugin.compat import apply_compat, remove_compat
from nac_openood.plugin.settings import written_in
from nac_openood.plugin.source import import_failure

#: What undoes `register`; None if it was not called.
_undo: Optional[ExitStack] = None


def register(compat: bool = False) -> bool:
    """Make every rule of ours a postprocessor that OpenOOD knows, e.g. 'nac'.

    Afterwards `Evaluator(..., postprocessor_name='nac')`, OpenOOD's scripts and its pipelines
    accept the name. Settings come from `postprocessors/nac.yml` in the caller's `config_root` if
    that file exists; otherwise they are chosen by ID dataset and network. If OpenOOD has a
    postprocessor of that name, it is kept.

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
            _enter_tables(undo)
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


def _enter_tables(undo: ExitStack) -> None:
    import openood.evaluation_api.postprocessor as api
    import openood.postprocessors.utils as pipelines

    from nac_openood.plugin.postprocessor import NACPostprocessor

    names = [name for name in rule_names() if not _taken(api.postprocessors, name)]
    for name in names:
        api.postprocessors[name] = NACPostprocessor
        undo.callback(api.postprocessors.pop, name, None)
    if names:
        theirs = api.get_postprocessor
        _replace_everywhere(theirs, _for_evaluator(theirs, names), undo)
        theirs = pipelines.get_postprocessor
        _replace_everywhere(theirs, _for_pipelines(theirs, names, NACPostprocessor), undo)


def _taken(table: Mapping[str, Any], name: str) -> bool:
    """Whether OpenOOD has a postprocessor of this name, which stays in place."""
    if name in table:
        warnings.warn(
            f"OpenOOD has a postprocessor '{name}' of its own, which is kept. To use this one, "
            "pass Evaluator(postprocessor=NACPostprocessor(config)).",
            UserWarning,
            stacklevel=6,
        )
    return name in table


def _for_evaluator(original: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """OpenOOD's look-up, with our config where the caller's `config_root` has none."""

    @functools.wraps(original)
    def get_postprocessor(config_root: str, postprocessor_name: str, id_data_name: str) -> Any:
        if postprocessor_name not in names:
            return original(config_root, postprocessor_name, id_data_name)
        own = Path(config_root) / "postprocessors" / f"{postprocessor_name}.yml"
        if not os.path.lexists(own):
            if (CONFIG_ROOT / "postprocessors" / own.name).is_file():
                return original(str(CONFIG_ROOT), postprocessor_name, id_data_name)
            return _without_file(postprocessor_name, id_data_name)
        written_in(
            own, postprocessor_name
        )  # says what is wrong with it, where OpenOOD would fail or take long
        found = original(str(config_root), postprocessor_name, id_data_name)
        # absolute: a pickle of it may be set up again from another working directory
        found.config_file = str(own.resolve())
        return found

    return get_postprocessor


def _without_file(rule: str, id_data: str) -> Any:
    """The postprocessor of a rule that ships no YAML: automatic layers, nothing to search."""
    from openood.utils import Config

    from nac_openood.plugin.postprocessor import NACPostprocessor

    document = NACConfig({}, rule=rule).to_dict()
    return NACPostprocessor(Config(**document, dataset={"name": id_data}))


def _for_pipelines(
    original: Callable[..., Any], names: list[str], cls: Callable[[Any], Any]
) -> Callable[..., Any]:
    """The look-up of `main.py`'s pipelines, whose table is inside the function."""

    @functools.wraps(original)
    def get_postprocessor(config: Any) -> Any:
        return cls(config) if config.postprocessor.name in names else original(config)

    return get_postprocessor


def _replace_everywhere(original: Any, replacement: Any, undo: ExitStack) -> None:
    """Replace a function in every module of OpenOOD that imported it by name."""
    for module in [m for n, m in sys.modules.items() if n.split(".")[0] == "openood"]:
        for name, value in list(vars(module).items()):
            if value is original:
                setattr(module, name, replacement)
                undo.callback(setattr, module, name, original)
