"""JSON values as dataclasses and named tuples, checked entry by entry against their type hints."""

from __future__ import annotations

import collections.abc
import dataclasses
import math
import re
from functools import cache
from typing import Any, Mapping, Type, TypeVar, Union, get_args, get_origin, get_type_hints

from nac_openood.errors import NACError

_T = TypeVar("_T")
_PLAIN = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_NUMBER = re.compile("[0-9]{1,9}").fullmatch
_SHOWN = 60


def from_values(kind: Type[_T], value: Any, where: str = "", **given: Any) -> _T:
    """The object of class `kind` that a JSON object describes.

    Args:
        kind: a dataclass or a named tuple whose fields are plain values, sequences, mappings, or
            other such classes.
        value: a JSON value.
        where: the name of the entry, for errors.
        given: fields that are not in `value`.

    Raises:
        NACError: an entry is missing, unknown, or of another type; the message names it.
    """
    if not isinstance(value, Mapping):
        raise _wrong(where, "an object with named entries", value)
    hints, needed = _fields(kind)  # type: ignore[arg-type]
    lacking = [name for name in needed if name not in value and name not in given]
    unknown = [name for name in value if name not in hints or name in given]
    if lacking or unknown:
        what = f"'{lacking[0]}' is missing" if lacking else f"'{unknown[0]}' is unknown"
        raise NACError(f"{what} in {where}" if where else what)
    found = {n: checked(hints[n], v, f"{where}.{n}" if where else n) for n, v in value.items()}
    return kind(**found, **given)


def checked(hint: Any, value: Any, where: str) -> Any:
    """`value` as the type hint says, with tuples where it says tuples; see `from_values`."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Union:
        return _one_of(inner, value, where)
    if origin is tuple and inner[-1] is not Ellipsis:
        return _pair(inner, value, where)
    if origin in (tuple, list, collections.abc.Sequence):
        if not isinstance(value, (list, tuple)):
            raise _wrong(where, "a list", value)
        found = [checked(inner[0], each, f"{where}[{i}]") for i, each in enumerate(value)]
        return tuple(found) if origin is tuple else found
    if origin in (dict, collections.abc.Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(where, "an object with named entries", value)
        if inner[0] is int and not all(map(_NUMBER, map(str, value))):
            raise _wrong(where, "an object with whole numbers for names", value)
        kind = int if inner[0] is int else lambda name: name  # JSON has texts for names only
        return {kind(n): checked(inner[1], each, f"{where}.{n}") for n, each in value.items()}
    if hint in _PLAIN or hint is type(None):
        return _plain(hint, value, where)
    return from_values(hint, value, where)


def _plain(hint: Any, value: Any, where: str) -> Any:
    if hint is float and type(value) is int and abs(value) < 2**53:
        return value  # JSON has one kind of number
    if type(value) is not hint:
        raise _wrong(where, _PLAIN.get(hint, "null"), value)
    if hint is float and not math.isfinite(value):
        raise _wrong(where, "a finite number", value)
    return value


def _one_of(hints: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in hints:
        return None
    others = [hint for hint in hints if hint is not type(None)]
    for hint in others[:-1]:
        try:
            return checked(hint, value, where)
        except NACError:
            continue
    return checked(others[-1], value, where)


def _pair(hints: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)) or len(value) != len(hints):
        raise _wrong(where, f"a list of {len(hints)}", value)
    return tuple(checked(h, v, f"{where}[{i}]") for i, (h, v) in enumerate(zip(hints, value)))


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], list[str]]:
    """The type hints of all fields, and the names of those without a default."""
    hints = get_type_hints(kind)
    if not dataclasses.is_dataclass(kind):
        defaults = kind._field_defaults
        return hints, [name for name in hints if name not in defaults]
    absent = dataclasses.MISSING
    own = [field for field in dataclasses.fields(kind) if field.init]
    needed = [f.name for f in own if f.default is absent and f.default_factory is absent]
    return {f.name: hints[f.name] for f in own}, needed


def _wrong(where: str, expected: str, value: Any) -> NACError:
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    return NACError(f"'{where or 'the document'}' must be {expected}, got {shown}")
