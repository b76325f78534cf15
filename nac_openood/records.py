"""Values from JSON and YAML files, checked before they are used.

`from_values` makes dataclasses and named tuples of JSON objects, entry by entry according to their
type hints. `parse_yaml` reads the YAML that people write.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import math
import reprlib
from functools import cache
from typing import Any, Hashable, Mapping, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from nac_openood.errors import NACError

_T = TypeVar("_T")
_SCALARS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_SCALARS[type(None)] = "null"


def from_values(kind: type[_T], value: Any, where: str = "", **fields: Any) -> _T:
    """Make an object of class `kind` from a JSON object.

    Args:
        kind: a dataclass or named tuple whose fields are scalars, sequences, mappings, or other
            such classes.
        value: a JSON value.
        where: the name of the entry, for errors.
        fields: fields that are not in `value`.

    Raises:
        NACError: an entry is missing, unknown, or of another type; the message names it.
    """
    if not isinstance(value, Mapping):
        raise _wrong(where, "an object with named entries", value)
    hints, required = _fields(kind)  # type: ignore[arg-type]
    missing = [name for name in required if name not in value and name not in fields]
    unknown = [name for name in value if name not in hints or name in fields]
    if missing or unknown:
        what = f"'{missing[0]}' is missing" if missing else f"'{unknown[0]}' is unknown"
        raise NACError(f"{what} in {where}" if where else what)
    found = {n: checked(hints[n], v, f"{where}.{n}" if where else n) for n, v in value.items()}
    return kind(**found, **fields)


def checked(hint: Any, value: Any, where: str) -> Any:
    """`value` as the type hint says, with tuples where it says tuples; see `from_values`."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Union:
        for option in inner if value is None else [i for i in inner if i is not type(None)]:
            try:
                return checked(option, value, where)
            except NACError as error:
                last = error
        raise last
    if origin in (tuple, list, collections.abc.Sequence):
        fixed = origin is tuple and inner[-1] is not Ellipsis
        if not isinstance(value, (list, tuple)) or (fixed and len(value) != len(inner)):
            raise _wrong(where, f"a list of {len(inner)}" if fixed else "a list", value)
        each = inner if fixed else inner[:1] * len(value)
        found = [checked(h, v, f"{where}[{i}]") for i, (h, v) in enumerate(zip(each, value))]
        return tuple(found) if origin is tuple else found
    if origin in (dict, collections.abc.Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(where, "an object with named entries", value)
        if inner[0] is int and not all(str(name).isdecimal() for name in value):
            raise _wrong(where, "an object with whole numbers for names", value)
        key = int if inner[0] is int else lambda name: name  # JSON's names are always text
        return {key(n): checked(inner[1], v, f"{where}.{n}") for n, v in value.items()}
    if hint not in _SCALARS:
        return from_values(hint, value, where)
    if hint is float and type(value) is int and abs(value) < 2**53:
        return value  # JSON has one kind of number
    if type(value) is not hint:
        raise _wrong(where, _SCALARS[hint], value)
    if hint is float and not math.isfinite(value):
        raise _wrong(where, "a finite number", value)
    return value


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], list[str]]:
    """The type hints of all fields, and the names of those without a default."""
    hints, absent = get_type_hints(kind), dataclasses.MISSING
    if not dataclasses.is_dataclass(kind):
        return hints, [name for name in hints if name not in kind._field_defaults]
    own = [field for field in dataclasses.fields(kind) if field.init]
    required = [f.name for f in own if f.default is absent and f.default_factory is absent]
    return {f.name: hints[f.name] for f in own}, required


def _wrong(where: str, expected: str, value: Any) -> NACError:
    return NACError(f"'{where or 'the document'}' must be {expected}, got {reprlib.repr(value)}")


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys, of which the last one would win."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in getattr(node, "value", ()) if key.tag.endswith(":str")]
        for key in keys:
            if keys.count(key) > 1:
                raise NACError(f"duplicate key '{key}' in line {node.start_mark.line + 1}.")
        return super().construct_mapping(node, deep=deep)


def parse_yaml(text: str) -> Any:
    """The value of a YAML text.

    Raises:
        NACError: the text is not valid; the message does not name the file.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise NACError(f"not valid YAML: {error}") from error
