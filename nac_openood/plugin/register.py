"""Make 'nac' a name that OpenOOD knows: no file in its tree, no download, and undoable."""

from __future__ import annotations

import functools
import sys
import warnings
from pathlib import Path
from typing import Any, Callable

from nac_openood.errors import NACError
from nac_openood.plugin.compat import apply_compat, remove_compat
from nac_openood.presets import CONFIG_ROOT

NAME = "nac"
_undo: list[Callable[[], None]] = []


def register(compat: bool = False) -> bool:
    """Put NAC into OpenOOD's tables and config lookup.

    Afterwards `Evaluator(..., postprocessor_name='nac')`, OpenOOD's scripts and its pipelines know
    it. A `postprocessors/nac.yml` in the caller's `config_root` is used; without one the settings
    are chosen from the ID data set and the network. An entry of OpenOOD's own is never replaced.

    Args:
        compat: also apply what this machine needs to run OpenOOD; see `nac_openood.plugin.compat`.

    Returns:
        Whether anything changed; a second call does nothing.

    Raises:
        NACError: OpenOOD or one of its dependencies cannot be imported.
    """
    if _undo:
        return False
    patches = apply_compat() if compat else ()
    try:
        _enter_tables()
    except BaseException as error:
        unregister()
        remove_compat(patches)
        if isinstance(error, ImportError):
            raise NACError(
                f"Expected an OpenOOD that can be imported, but: {error}. `nac-openood doctor` "
                "tells what is missing and the command that mends it."
            ) from error
        raise
    _undo.insert(0, lambda: remove_compat(patches))
    return True


def unregister() -> None:
    """Take back what `register` did; does nothing where nothing was done."""
    while _undo:
        _undo.pop()()


def _enter_tables() -> None:
    import openood.evaluation_api.postprocessor as api
    import openood.postprocessors.utils as pipelines

    from nac_openood.plugin.postprocessor import NACPostprocessor

    if NAME in api.postprocessors:
        warnings.warn(
            f"OpenOOD has a postprocessor '{NAME}' of its own, which stays in place; pass "
            "Evaluator(postprocessor=NACPostprocessor(config)) to use this one.",
            UserWarning,
            stacklevel=4,
        )
        return
    api.postprocessors[NAME] = NACPostprocessor
    _undo.append(lambda: api.postprocessors.pop(NAME, None) and None)
    _replace_everywhere(api.get_postprocessor, _for_evaluator(api.get_postprocessor))
    _replace_everywhere(
        pipelines.get_postprocessor, _for_pipelines(pipelines.get_postprocessor, NACPostprocessor)
    )


def _for_evaluator(original: Callable[..., Any]) -> Callable[..., Any]:
    """OpenOOD's look-up, with our config where the caller's `config_root` has none."""

    @functools.wraps(original)
    def get_postprocessor(config_root: str, postprocessor_name: str, id_data_name: str) -> Any:
        if postprocessor_name != NAME:
            return original(config_root, postprocessor_name, id_data_name)
        own = Path(config_root) / "postprocessors" / f"{NAME}.yml"
        found = original(str(config_root if own.is_file() else CONFIG_ROOT), NAME, id_data_name)
        # relative to where it was: a pickle of it may be set up again from another folder
        found.config_file = str(own.resolve()) if own.is_file() else None
        return found

    return get_postprocessor


def _for_pipelines(original: Callable[..., Any], cls: Callable[[Any], Any]) -> Callable[..., Any]:
    """The look-up of `main.py`'s pipelines, whose table is inside the function."""

    @functools.wraps(original)
    def get_postprocessor(config: Any) -> Any:
        return cls(config) if config.postprocessor.name == NAME else original(config)

    return get_postprocessor


def _replace_everywhere(original: Any, replacement: Any) -> None:
    """Replace a function in every module of OpenOOD that has imported it by name."""
    for module in [m for n, m in sys.modules.items() if n.split(".")[0] == "openood"]:
        for name, value in list(vars(module).items()):
            if value is original:
                setattr(module, name, replacement)
                _undo.append(functools.partial(setattr, module, name, original))
