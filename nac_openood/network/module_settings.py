"""What the modules of a network compute by, beside their weights: classes, stride, eps and so on.

Two networks may have the same weights and differ in these. What makes no difference in evaluation
mode is left out, and so is what may change without another network: counters, caches, paths, and
what depends on the machine.
"""

from __future__ import annotations

import dis
import re
import types
from functools import cache, partial
from typing import Any, Callable, Collection, Iterator, Mapping, Optional

import torch
from torch import nn

from nac_openood.network.running_code import is_library_class, own_function, plain_text

#: Modules that do nothing in evaluation mode; libraries add and remove them.
_IDLE = re.compile("Identity|.*Dropout.*|DropPath|StochasticDepth|DropBlock.*")
#: Attributes that make no difference in evaluation mode, or tell how a network is run.
_IGNORED = frozenset(
    {"training", "inplace", "momentum", "p", "dropout", "drop", "drop_prob", "drop_path_prob",
     "drop_rate", "attn_drop_rate", "proj_drop_rate", "drop_path_rate", "scale_by_keep",
     "enable_nested_tensor", "use_nested_tensor", "call_super_init", "dump_patches",
     "epoch", "step", "global_step", "iteration", "counter", "calls", "seed"}
)  # fmt: skip
#: The same, by parts of the names in modules that are not torch's.
_OF_THE_MACHINE = re.compile("cuda|device|gpu|path|file|folder|log|debug|verbose|name|cfg|config")
_LONGEST = 64


def module_classes(net: nn.Module) -> list[str]:
    """A line per module, in order: its name and its class."""
    return [f"{name} {_class(module)}" for name, module in _modules(net)]


def module_settings(net: nn.Module) -> dict[str, list[str]]:
    """By class and attribute, e.g. `BatchNorm2d.eps`: a line per module with its value."""
    return _by_attribute(net, vars)


def class_settings(net: nn.Module, asked: Collection[str]) -> dict[str, list[str]]:
    """The same of attributes of the user's own classes, which a module may replace by its own.

    Args:
        net: the network.
        asked: names of the attributes that count: those that `forward` asks for.
    """

    def attributes(module: nn.Module) -> dict[str, Any]:
        own = [kind for kind in reversed(type(module).__mro__) if not is_library_class(kind)]
        found = {name: value for kind in own for name, value in vars(kind).items()}
        return {
            name: vars(module).get(name, getattr(value, "__func__", value))  # of a static method
            for name, value in found.items()
            if name in asked and own_function(value) is None  # else it is code
        }

    return _by_attribute(net, attributes)


def _by_attribute(
    net: nn.Module, attributes: Callable[[nn.Module], Mapping[str, Any]]
) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, module in _modules(net):
        for attribute, text in _settings(module, attributes(module)):
            found.setdefault(f"{_class(module)}.{attribute}", []).append(f"{name} {text}")
    return found


def _modules(net: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules by name, without those that are idle and without torch.compile around inner ones."""
    for name, module in net.named_modules():
        compiled = isinstance(getattr(module, "_orig_mod", None), nn.Module)
        if not compiled and not _IDLE.fullmatch(type(module).__name__):
            yield ".".join(part for part in name.split(".") if part != "_orig_mod"), module


def _class(module: nn.Module) -> str:
    """A class by its name: the file it stands in may be another one in another process.

    A library's variant of one of torch's classes counts as that class.
    """
    if isinstance(module, torch.jit.ScriptModule):
        return str(getattr(module, "original_name", "ScriptModule"))
    for kind in type(module).__mro__:
        if kind.__module__.startswith("torch.") and kind is not nn.Module:
            return kind.__qualname__
        if not is_library_class(kind):
            break
    return type(module).__qualname__


def _settings(module: nn.Module, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if isinstance(module, torch.jit.ScriptModule):
        return
    is_torchs = type(module).__module__.startswith("torch.")
    kind: Any = type(module)
    of_library = not is_torchs and is_library_class(kind)
    changing = _assigned(kind)
    for name, value in sorted(values.items()):
        if name.startswith("_") or name in _IGNORED or name in changing:
            continue
        if not is_torchs and _OF_THE_MACHINE.search(name):
            continue
        if of_library and not _is_number(value):  # switches and texts of libraries often do
            continue
        text = _setting(value)
        if text is not None:
            yield name, text


def _is_number(value: Any) -> bool:
    values = value if isinstance(value, (tuple, list)) else [value]
    return all(type(each) in (int, float) for each in values)


def _setting(value: Any) -> Optional[str]:
    """A setting as a text; None if it is none."""
    if isinstance(value, str) and (len(value) > _LONGEST or "/" in value or "\\" in value):
        return None  # a path, say
    if isinstance(value, partial):
        return f"{_setting(value.func)} {plain_text(value.args)} {plain_text(value.keywords)}"
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return f"function {value.__name__}"
    return plain_text(value)


@cache
def _assigned(kind: type) -> frozenset[str]:
    """Attributes that methods other than `__init__` assign: counters, caches, the last shape."""
    names = set()
    for each in kind.__mro__:
        if each is nn.Module:
            break
        for name, value in vars(each).items():
            code = getattr(value, "__code__", None)
            if code is not None and name not in ("__init__", "__setstate__", "reset_parameters"):
                names |= {s.argval for s in dis.get_instructions(code) if s.opname == "STORE_ATTR"}
    return frozenset(names)
