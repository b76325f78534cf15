"""Loads Python objects of the user: `package.module:name` or `path/to/file.py:name`.

This runs the user's code. It is done only for text that the user typed, never for text that was
read from a data file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import operator
import os
import re
import sys
import sysconfig
import traceback
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Iterator, Mapping

from nac_openood.errors import NACError, some


def is_code(text: str) -> bool:
    """Whether `text` has the form of `package.module:name` or `path/to/file.py:name`."""
    name = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
    return re.fullmatch(rf"(.+\.py|{name}):{name}", text, re.DOTALL) is not None


def load_code(text: str, what: str) -> Any:
    """Import the object that `text` names.

    Args:
        text: `package.module:name` or `path/to/file.py:name`; packages are also searched for in
            the current folder.
        what: the argument it was passed as, for errors, e.g. "`arch`".

    Raises:
        NACError: there is no such code, or it fails; its own error is the `__cause__`.
    """
    home, _, name = text.rpartition(":")
    with user_code(text, what):
        if home.endswith(".py"):
            module = _run_file(Path(home).resolve())
        else:
            _add_to_search_path(Path.cwd())
            module = importlib.import_module(home)
    try:
        return operator.attrgetter(name)(module)
    except AttributeError:
        names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise NACError(f"{what}: {home} has no '{name}'. It has {some(names, 8)}.") from None


def call_code(text: str, what: str, offered: Mapping[str, Any], made: Any = ()) -> Any:
    """The object that `text` names or, if it can be called, what it returns.

    Args:
        text: as in `load_code`.
        what: the argument it was passed as, for errors.
        offered: the value by each parameter name that it is passed to by keyword. A function with
            one required parameter of another name gets the first value.
        made: objects of this class are not called.

    Raises:
        NACError: it requires other arguments, or it fails; its own error is the `__cause__`.
    """
    found = load_code(text, what)
    if isinstance(found, made) or not callable(found):
        return found
    signature = inspect.signature(found)
    named = {name: value for name, value in offered.items() if name in signature.parameters}
    for positional in ((), tuple(offered.values())[:1]):
        if accepts(found, *positional, **named):
            with user_code(text, what):
                return found(*positional, **named)
    allowed = f"`{next(iter(offered))}` or nothing" if offered else "nothing"
    raise NACError(f"{what}: {text} must take {allowed}, but its parameters are {signature}.")


def accepts(function: Callable[..., Any], *args: Any, **named: Any) -> bool:
    """Whether a function can be called with these arguments."""
    try:
        inspect.signature(function).bind(*args, **named)
    except (TypeError, ValueError):  # ValueError: no signature, as for some functions in C
        return False
    return True


@contextmanager
def user_code(text: str, what: str) -> Iterator[None]:
    """Turn errors of the user's code into `NACError`s that say where it failed."""
    try:
        yield
    except NACError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        users = [frame for frame in frames if _is_user_file(frame.filename)]
        where = f" in {users[-1].filename}, line {users[-1].lineno}" if users else ""
        reason = f"{type(error).__name__}: {error}"
        raise NACError(f"{what}: your code {text} failed{where}: {reason}") from error


def _is_user_file(filename: str) -> bool:
    """Whether a file belongs to neither this package, nor Python, nor an installed package."""
    libraries = (Path(__file__).parents[1], *map(Path, sysconfig.get_paths().values()))
    return not filename.startswith("<") and not set(libraries) & set(Path(filename).parents)


def _run_file(path: Path) -> ModuleType:
    """Run a file once, as a module of its own that can import its neighbors."""
    name = f"nac_user_{path.stem}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise NACError(f"there is no file {path}.")
    _add_to_search_path(path.parent)
    spec: Any = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle need it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _add_to_search_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
