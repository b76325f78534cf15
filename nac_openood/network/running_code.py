"""The code that a network's `forward` runs, as far as it is the user's own.

Two networks with the same parameters compute different things if one of their `forward` methods
differs. What counts is the code that `forward` reaches: methods of the module, functions and
constants of its file, what it closes over. Code of installed libraries counts by its name only:
another version of torchvision is no other network.

Code is compared in two forms. Bytecode is exactly what runs, but is the same in one version of
Python only. The syntax tree of the source, without comments, docstrings and annotations, is the
same in all of them, but the source is not always there.
"""

from __future__ import annotations

import ast
import dis
import importlib.util
import inspect
import sys
import sysconfig
import textwrap
import types
from functools import cache, partial
from pathlib import Path
from typing import Any, Iterator, Optional

import torch

#: What bytecode depends on: the version of Python, and whether assertions are compiled in.
BYTECODE_OF = f"{importlib.util.MAGIC_NUMBER.hex()} {sys.flags.optimize} {torch.__version__}"
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LIBRARIES = ("torch", "numpy", "nac_openood")
_MOST = 2000


def is_library(module: Optional[str], file: Optional[str]) -> bool:
    """Whether code is torch's, ours, the standard library's or of an installed package."""
    if (module or "").partition(".")[0] in _LIBRARIES:
        return True
    return file is not None and file.startswith(("<frozen", *_installed()))


@cache
def _installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= {path for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
    return tuple(f"{folder}/" for each in found for folder in (each, str(Path(each).resolve())))


def own_function(value: Any) -> Optional[types.FunctionType]:
    """The user's own Python function behind a function, method or wrapper; None if it is none."""
    for _ in range(10):
        if isinstance(value, (staticmethod, classmethod, types.MethodType)):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(value, partial):
            value = value.func
        else:
            inner = getattr(value, "_torchdynamo_orig_callable", None)
            inner = inner or getattr(value, "__wrapped__", None)
            if inner is None:
                break
            value = inner
    if not isinstance(value, types.FunctionType):
        return None
    return None if is_library(value.__module__, value.__code__.co_filename) else value


class Reached:
    """Everything that some functions run, found by following names.

    Attributes:
        bytecode: a text per function and constant, in the order in which they were found.
        source: the same from the source; None if it is not there for all of them.
        asked: names of all attributes that they ask for.
    """

    def __init__(self) -> None:
        self.bytecode: list[str] = []
        self.source: Optional[list[str]] = []
        self.asked: set[str] = set()
        self._seen: set[Any] = set()

    def add(self, function: types.FunctionType, owner: Any) -> None:
        """Follow a function; `owner` is the class whose methods it may call."""
        key = (function.__code__, owner)
        if key in self._seen or len(self._seen) > _MOST:
            return
        self._seen.add(key)
        self._append(code_text(function.__code__), _tree(function))
        self._note([function.__defaults__, function.__kwdefaults__], owner)
        reads, asks = _names(function.__code__)
        for name in sorted(reads):
            value = function.__globals__.get(name)
            if not isinstance(value, (bool, str)):  # which often depend on the machine
                self._note(value, owner, name)
        for cell in function.__closure__ or ():
            try:
                self._note(cell.cell_contents, owner)
            except ValueError:  # not filled yet
                continue
        self.asked |= asks
        for name in sorted(asks):
            self._method(owner, name)

    def _method(self, owner: Any, name: str) -> None:
        found = own_function(inspect.getattr_static(owner, name, None))
        if found is not None:
            self.add(found, owner)

    def _note(self, value: Any, owner: Any, name: str = "") -> None:
        """What a global name, a default or a variable of an outer function stands for."""
        function = own_function(value)
        if function is not None:
            self.add(function, owner)
        elif isinstance(value, type) and not is_library_class(value):
            if not issubclass(value, torch.nn.Module):  # whose instances are looked at themselves
                for part in vars(value):
                    self._method(value, part)
        else:
            text = plain_text(value)
            if text is not None:
                self._append(f"{name}={text}", f"{name}={text}")

    def _append(self, bytecode: str, source: Optional[str]) -> None:
        self.bytecode.append(bytecode)
        if source is None:
            self.source = None
        elif self.source is not None:
            self.source.append(source)


def plain_text(value: Any, depth: int = 0) -> Optional[str]:
    """Numbers, texts and collections of them as a text; None for anything else."""
    if isinstance(value, torch.Size) or type(value) in (tuple, list):
        parts = [plain_text(each, depth + 1) for each in value] if depth < 5 else [None]
        return None if None in parts else f"({', '.join(map(str, parts))})"
    if type(value) is dict:
        return plain_text([[k, v] for k, v in value.items()], depth + 1)
    if isinstance(value, torch.dtype) or type(value) in _PLAIN:
        return repr(value)
    return None


@cache
def is_library_class(kind: type) -> bool:
    """Like `is_library`, of a class."""
    return is_library(kind.__module__, getattr(sys.modules.get(kind.__module__), "__file__", None))


def _names(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Global names that code reads, and attributes that it asks for; also in nested functions."""
    reads, asks = set(), set()
    for each in nested_code(code):
        for step in dis.get_instructions(each):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                reads.add(str(step.argval))
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                asks.add(str(step.argval))
    return reads, asks


def nested_code(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of all functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested_code(constant)


def code_text(code: types.CodeType) -> str:
    """Instructions, names and constants, the same in every process of one version of Python."""
    constants = [
        code_text(c) if isinstance(c, types.CodeType)
        else str(sorted(map(repr, c))) if isinstance(c, frozenset) else repr(c)
        for c in code.co_consts
    ]  # fmt: skip
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return f"{code.co_name} {code.co_code.hex()} {names} {constants}"


def _tree(function: types.FunctionType) -> Optional[str]:
    """The syntax tree of a function; None if its source is not there or generated."""
    if function.__code__.co_filename.startswith("<eval_with_key>"):  # torch.fx: differs by version
        return None
    try:
        found = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError, IndexError):
        return None  # IndexError: the file has become shorter
    return _dump(found)


def _dump(node: Any) -> str:
    """A syntax tree as a text that all versions of Python agree on: nothing empty, no positions."""
    if isinstance(node, list):
        return f"[{' '.join(filter(None, map(_dump, node)))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return ""  # a docstring
    left_out = ("annotation", "returns", "type_comment", "type_params", "kind")
    parts = [
        f"{name}={_dump(value)}"
        for name, value in ast.iter_fields(node)
        if name not in left_out and value not in (None, [])
    ]
    return f"{type(node).__name__}({' '.join(parts)})"
