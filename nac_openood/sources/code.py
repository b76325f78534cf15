"""Python objects that users name: `package.module:name` or `path/to/file.py:name`.

Loading one imports the module or runs the file, that is, it runs the user's code. Whoever calls
this does so because a user named the code; nothing that was read from a data file ends up here.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Iterator, Mapping

from nac_openood.errors import NACError, some
from nac_openood.paths import is_file

_SHOWN = 8


def is_code(text: str) -> bool:
    """Whether `text` has the form of `package.module:name` or `path/to/file.py:name`."""
    home, colon, name = text.rpartition(":")
    is_name = all(part.isidentifier() for part in name.split("."))
    is_home = home.endswith(".py") or all(part.isidentifier() for part in home.split("."))
    return bool(colon) and is_name and is_home


def load_code(text: str, what: str) -> Any:
    """Import what `text` names.

    Args:
        text: `package.module:name` or `path/to/file.py:name`; the current folder is searched for
            the package too.
        what: what it is for in errors, e.g. "`arch`".

    Raises:
        NACError: there is no such code, or it fails; what was raised is the `__cause__`.
    """
    home, _, name = text.rpartition(":")
    module = _file(Path(home), what) if home.endswith(".py") else _module(home, what)
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError:
        own = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise NACError(
            f"{what}: {home} has no '{name}'. It has {some(own, _SHOWN) or 'no functions'}."
        ) from None


def call_code(
    function: Callable[..., Any], text: str, what: str, offered: Mapping[str, Any]
) -> Any:
    """Call a user's function with one value if it takes one, or with nothing.

    A parameter that has one of the offered names is passed by name. Otherwise, a function with
    one parameter that has no default is given the first value, and one without such parameters
    nothing.

    Args:
        function: what `load_code` returned.
        text: what it was loaded from, for errors.
        what: what it is for, for errors.
        offered: the value by each of its usual names, the name for errors first.

    Raises:
        NACError: it takes something else, or it fails; what was raised is the `__cause__`.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of a function in C
        parameters = ()  # type: ignore[assignment]
    named = {p.name: offered[p.name] for p in parameters if p.name in offered}
    needed = [
        p
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    others = [p for p in needed if p.name not in offered]
    value = list(offered.values())[:1]
    one = 0 if named else len(value)  # how many it may need that are not called as expected
    if len(others) > one or (others and others[0].kind is others[0].KEYWORD_ONLY):
        allowed = f"`{next(iter(offered))}` or nothing" if offered else "nothing"
        raise NACError(
            f"{what}: {text} must take {allowed}, but it needs "
            f"{', '.join(p.name for p in others)}. Write a function that fills these in."
        )
    with user_code(text, what):
        return function(*(value if others else []), **named)


@contextmanager
def user_code(text: str, what: str) -> Iterator[None]:
    """Errors of the user's code become `NACError`s that say so and where it failed."""
    try:
        yield
    except NACError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if _is_theirs(frame.filename)]
        place = f" in {own[-1].filename}, line {own[-1].lineno}" if own else ""
        raise NACError(
            f"{what}: your code {text} failed{place}: {type(error).__name__}: {error}"
        ) from error


def _is_theirs(filename: str) -> bool:
    """Whether a file is the user's: neither ours, nor Python's, nor an installed package's."""
    above = Path(filename).parents
    ours = (Path(__file__).parents[1], *map(Path, sysconfig.get_paths().values()))
    return not filename.startswith("<") and not any(folder in above for folder in ours)


def _file(path: Path, what: str) -> ModuleType:
    """Run a file once, as a module of its own; it can import its neighbors."""
    if not is_file(path):
        raise NACError(f"{what}: there is no file {path}.")
    path = path.resolve()
    name = f"nac_user_{path.stem}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    _search(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # of a file that ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as dataclasses and pickle expect
    try:
        with user_code(str(path), what):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _module(name: str, what: str) -> ModuleType:
    _search(Path.cwd())
    try:
        with user_code(name, what):
            return importlib.import_module(name)
    except NACError as error:
        missing = getattr(error.__cause__, "name", None)
        if isinstance(error.__cause__, ModuleNotFoundError) and f"{name}.".startswith(
            f"{missing}."
        ):
            raise NACError(
                f"{what}: there is no module '{name}'. Install it, run the command in the folder "
                "that holds it, or name a file: path/to/file.py:name."
            ) from error.__cause__
        raise


def _search(folder: Path) -> None:
    """Look for modules in a folder, too, after all other places."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
