"""Redirect what leads to a network's modules to the modules of its replica.

A module can reach others by more than its registered children: a list of blocks, a bound method, a
`forward` set on the instance, a hook that closes over its parent. `Rebind` follows containers,
bound methods, partials and functions (closures, defaults and the global variables they name).
Whatever does not lead to a module of the network is shared, not copied; so are other objects.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from itertools import chain
from types import CellType, FunctionType, MethodType
from typing import Any, Iterable, Mapping, Optional

from torch import Tensor

from nac_openood.network.running_code import nested_code

#: These lead nowhere, and most attributes of a module are of them.
LEAVES = {type(None), bool, int, float, str, bytes, Tensor}
_SEQUENCES = {list, tuple, set, frozenset}
_MAPPINGS = {dict, OrderedDict}
#: Longer containers hold data, not structure; they are not searched.
_LONGEST = 1000


class Rebind:
    """Rebinds values to replicas.

    Args:
        replicas: the replacements, by the `id` of what they replace.
    """

    def __init__(self, replicas: Mapping[int, Any]) -> None:
        self._replicas = replicas
        self._done: dict[int, Any] = {}

    def __call__(self, value: Any) -> Any:
        """`value` itself, or a copy that leads to replicas in place of their originals."""
        if type(value) in LEAVES:
            return value
        return self._rebuilt(value) if self.leads(value) else value

    def leads(self, value: Any, seen: Optional[set[int]] = None) -> bool:
        """Whether `value` is replaced, or leads to something that is."""
        if type(value) in LEAVES:
            return False
        if id(value) in self._replicas:
            return True
        seen = set() if seen is None else seen
        if id(value) in seen:
            return False
        seen.add(id(value))
        return any(self.leads(part, seen) for part in _parts(value))

    def _rebuilt(self, value: Any) -> Any:
        if id(value) in self._replicas:
            return self._replicas[id(value)]
        if id(value) not in self._done:
            self._rebuild(value)
        return self._done[id(value)]

    def _rebuild(self, value: Any) -> None:
        """Put a copy into `_done`, where possible before its parts: it may be one of them."""
        kind = type(value)
        if kind is list:
            items = self._done[id(value)] = []
            items.extend(map(self, value))
        elif kind in _MAPPINGS:
            mapping = self._done[id(value)] = kind()
            mapping.update((self(key), self(part)) for key, part in value.items())
        elif kind is FunctionType:
            self._rebuild_function(value)
        else:
            self._done[id(value)] = self._rebuilt_whole(value)

    def _rebuilt_whole(self, value: Any) -> Any:
        kind = type(value)
        if kind is MethodType:
            return MethodType(self(value.__func__), self(value.__self__))
        if kind is partial:
            return partial(self(value.func), *self(value.args), **self(value.keywords))
        return kind(map(self, value))

    def _rebuild_function(self, old: FunctionType) -> None:
        if hasattr(old, "_torchdynamo_orig_callable"):  # compiled code skips hooks
            self._done[id(old)] = self(old._torchdynamo_orig_callable)
            return
        # cells that lead nowhere are shared: what a function writes into them stays visible
        cells = [CellType() if self.leads(_content(c)) else c for c in old.__closure__ or ()]
        named = {n: self(v) for n, v in _named_globals(old).items() if self.leads(v)}
        variables = {**old.__globals__, **named} if named else old.__globals__
        new = FunctionType(old.__code__, variables, old.__name__, None, tuple(cells))
        self._done[id(old)] = new
        vars(new).update(vars(old))
        new.__defaults__, new.__kwdefaults__ = self(old.__defaults__), self(old.__kwdefaults__)
        for cell, was in zip(cells, old.__closure__ or ()):
            if cell is not was:
                cell.cell_contents = self(was.cell_contents)


def _parts(value: Any) -> Iterable[Any]:
    """What a container, method, partial or function refers to."""
    kind = type(value)
    if kind in _SEQUENCES:
        return value if len(value) <= _LONGEST and not LEAVES.issuperset(map(type, value)) else ()
    if kind in _MAPPINGS:
        return chain(value, value.values()) if len(value) <= _LONGEST else ()
    if kind is MethodType:
        return (value.__func__, value.__self__)
    if kind is partial:
        return (value.func, value.args, value.keywords)
    if kind is FunctionType:
        cells = map(_content, value.__closure__ or ())
        named = _named_globals(value).values()
        return (*cells, value.__defaults__, value.__kwdefaults__, *named)
    return ()


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _named_globals(function: FunctionType) -> dict[str, Any]:
    """The global variables that a function names, except functions, which would lead too far."""
    names = (name for code in nested_code(function.__code__) for name in code.co_names)
    found = {name: function.__globals__.get(name) for name in names}
    return {n: value for n, value in found.items() if type(value) is not FunctionType}
