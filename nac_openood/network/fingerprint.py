"""Fingerprints of networks: counts fitted on one network mean nothing for another.

Two networks may have the same weights and still compute different things: their modules may have
other classes or settings (stride, eps), or another `forward`. A fingerprint leaves out whatever
makes no difference in evaluation mode, and whatever may change while the network stays the same:
counters, caches, paths, properties of the machine, and versions of libraries.
"""

from __future__ import annotations

import ast
import dis
import hashlib
import inspect
import re
import sys
import textwrap
import types
from functools import cache, partial
from operator import is_
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, Optional, Union

import torch
from torch import Tensor, nn

from nac_openood.errors import NACError
from nac_openood.network.replica import check_initialized, identities, unwrap
from nac_openood.tensor_files import raw_bytes

#: Source is compared within a version of Python only: `ast.unparse` differs between versions.
_FORWARD = f"forward {sys.version_info[0]}.{sys.version_info[1]}"
#: Modules that do nothing in evaluation mode; libraries add and remove them.
_IDLE = re.compile("Identity|.*Dropout.*|DropPath|StochasticDepth|DropBlock.*")
#: Attributes that make no difference in evaluation mode, or that only count or configure runs.
_IGNORED = frozenset(
    {"training", "inplace", "momentum", "p", "dropout", "drop", "drop_prob", "drop_path_prob",
     "drop_rate", "attn_drop_rate", "proj_drop_rate", "drop_path_rate", "scale_by_keep",
     "enable_nested_tensor", "use_nested_tensor", "call_super_init", "dump_patches",
     "epoch", "step", "global_step", "iteration", "counter", "calls", "seed"}
)  # fmt: skip
#: Parts of the names of such attributes, in modules that are not PyTorch's.
_OF_THE_MACHINE = re.compile("cuda|device|gpu|path|file|folder|log|debug|verbose|name|cfg|config")


def fingerprint(net: nn.Module, known: Optional[Mapping[str, str]] = None) -> dict[str, str]:
    """Hashes that are equal for equal networks, in every process and on every device.

    Args:
        net: the network.
        known: an earlier fingerprint with the same parameters and buffers, which are then not read.

    Returns:
        `structure`: names, shapes and precision of parameters and buffers. `weights`: their
        values. `modules`: names and classes of the modules, in order. `setting CLASS.NAME`: the
        settings of modules, such as stride and eps. `forward VERSION`: the user's own `forward`
        methods.
    """
    inner = unwrap(net)
    modules = _modules(inner)
    settings: dict[str, list[str]] = {}
    for name, module in modules:
        for attribute, text in _settings(module):
            key = f"setting {_class(module)}.{attribute}"
            settings.setdefault(key, []).append(f"{name} {text}")
    tensors = _tensors(inner) if known is None else {n: known[n] for n in ("structure", "weights")}
    return {
        **tensors,
        "modules": _hash(f"{name} {_class(module)}" for name, module in modules),
        **{key: _hash(lines)[:16] for key, lines in settings.items()},
        _FORWARD: _hash(_forward_code(inner)),
    }


def identity(net: nn.Module) -> str:
    """A short hash of the weights, the same in all versions of Python and torch."""
    found = _tensors(unwrap(net))
    return _hash([found["structure"], found["weights"]])[:32]


class Watch:
    """Notices that a network has changed since this object was made.

    A network that was moved to another device or put in train mode, which passes do not use, has
    not changed. Values that were written through `.data` are noticed if they include the one value
    per tensor on the CPU that is compared, or by a `certain` comparison.

    Attributes:
        fingerprint: of the network when this object was made.
    """

    def __init__(self, net: nn.Module) -> None:
        self._net, self.fingerprint = unwrap(net), fingerprint(net)
        self._remember(identities(self._net.modules()))

    def __getstate__(self) -> dict[str, Any]:  # a copy compares all weights once
        return {"_net": self._net, "fingerprint": self.fingerprint, "_structure": []}

    def change(self, structure: Optional[list[int]] = None, *, certain: bool = False) -> str:
        """How the network has changed, in words; "" if it has not.

        Args:
            structure: the `identities` of its modules; None computes them.
            certain: whether to compare all weights even if nothing suggests a change.
        """
        structure = structure or identities(self._net.modules())
        same = not certain and bool(self._structure) and self._values() == self._seen
        if same and structure != self._structure:
            tensors = _plain_tensors(self._net)
            same = len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))
        if not same or structure != self._structure:
            found = difference(
                self.fingerprint, fingerprint(self._net, self.fingerprint if same else None)
            )
            if found:
                return found
            self._remember(structure)
        return ""

    def _remember(self, structure: list[int]) -> None:
        self._structure, self._tensors = structure, _plain_tensors(self._net)
        self._versioned = [tensor for tensor in self._tensors if not tensor.is_inference()]
        on_cpu = [t.detach() for t in self._tensors if t.numel() and t.device.type == "cpu"]
        # views, which show what is written into the tensors later
        self._samples = [t[tuple(n // 2 for n in t.shape)] for t in on_cpu]
        self._seen = self._values()

    def _values(self) -> list[Any]:
        """What changes with the values of the tensors, and is cheap to read."""
        versions = [tensor._version for tensor in self._versioned]
        return [*versions, *map(Tensor.data_ptr, self._tensors), *map(Tensor.item, self._samples)]


def _plain_tensors(net: nn.Module) -> list[Tensor]:
    tensors = (*net.parameters(), *net.buffers())
    return [t for t in tensors if type(t) in (Tensor, nn.Parameter) and t.layout == torch.strided]


def difference(saved: Mapping[str, str], net: Union[nn.Module, Mapping[str, str]]) -> str:
    """How `net`, or its fingerprint, differs from a saved fingerprint, in words; "" if it does not.

    Only what both have is compared: a setting that one of them does not have is new in another
    version of a library or of this package. Early fingerprints have `structure` and `weights` only.
    """
    if not {"structure", "weights"} <= set(saved):
        raise NACError("its fingerprint of the network has no 'structure' and 'weights'.")
    now = fingerprint(net) if isinstance(net, nn.Module) else net
    names = [name for name in now if now[name] != saved.get(name, now[name])]
    if "structure" in names:
        return "its parameters have other names, shapes or precision (another architecture)"
    if "weights" in names:
        return "it has the same architecture but other weights (another checkpoint)"
    if not names:
        return ""
    what = {"modules": "other modules", _FORWARD: "another `forward`"}
    other = what.get(names[0], names[0].replace("setting", "another", 1))
    return f"it has the same weights but {other}"


def _tensors(net: nn.Module) -> dict[str, str]:
    structure, weights = hashlib.sha256(), hashlib.sha256()
    for name, tensor in sorted(net.state_dict().items()):
        if not isinstance(tensor, torch.Tensor):
            continue  # a module may keep other extra state
        check_initialized(net, tensor)
        if type(tensor) is torch.Tensor and tensor.is_meta:  # a subclass may keep its own values
            name = type(net).__name__
            raise NACError(f"the weights of {name} are on the meta device: load them.")
        values = raw_bytes(tensor.detach().cpu())
        name = name.replace("_orig_mod.", "")
        structure.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        weights.update(values)
    return {"structure": structure.hexdigest(), "weights": weights.hexdigest()}


def _hash(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "backslashreplace")).hexdigest()


def _modules(net: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules by name, without idle ones and without the wrappers of torch.compile."""
    return [
        (".".join(part for part in name.split(".") if part != "_orig_mod"), module)
        for name, module in net.named_modules()
        if not isinstance(getattr(module, "_orig_mod", None), nn.Module)
        if not _IDLE.fullmatch(type(module).__name__)
    ]


def _class(module: nn.Module) -> str:
    """The name of a class; a library's variant of one of torch's classes counts as that class."""
    if isinstance(module, torch.jit.ScriptModule):
        return str(getattr(module, "original_name", "ScriptModule"))
    for kind in type(module).__mro__:
        if kind.__module__.startswith("torch.") and kind is not nn.Module:
            return kind.__qualname__
        if not _is_library(kind.__module__):
            break
    return type(module).__qualname__


@cache
def _is_library(module: Optional[str]) -> bool:
    """Whether a Python module is torch's, ours, or of an installed package."""
    if (module or "").partition(".")[0] in ("torch", "numpy", "nac_openood", "builtins"):
        return True
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file or "").parts)


# -- settings --------------------------------------------------------------------------------------


def _settings(module: nn.Module) -> Iterator[tuple[str, str]]:
    if isinstance(module, torch.jit.ScriptModule):
        return
    kind: Any = type(module)
    is_torchs = kind.__module__.startswith("torch.")
    of_library = not is_torchs and _is_library(kind.__module__)
    for name, value in sorted(vars(module).items()):
        if name.startswith("_") or name in _IGNORED or name in _assigned(kind):
            continue
        if not is_torchs and _OF_THE_MACHINE.search(name):
            continue
        each = value if isinstance(value, (tuple, list)) else [value]
        if of_library and any(type(v) not in (int, float) for v in each):
            continue  # booleans and strings of libraries often depend on the machine
        text = _text(value)
        if text is not None:
            yield name, text


def _text(value: Any) -> Optional[str]:
    """A setting as text: numbers, strings, functions and collections; None for anything else."""
    if isinstance(value, partial):
        return f"{_text(value.func)} {_text(value.args)} {_text(value.keywords)}"
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return f"function {value.__name__}"
    if type(value) is dict:
        value = [[k, v] for k, v in value.items()]
    if type(value) in (tuple, list, torch.Size):
        parts = [_text(each) for each in value]
        return None if None in parts else f"({', '.join(map(str, parts))})"
    is_path = isinstance(value, str) and (len(value) > 64 or "/" in value or "\\" in value)
    simple = (bool, int, float, complex, str, bytes, type(None), torch.dtype)
    return repr(value) if type(value) in simple and not is_path else None


@cache
def _assigned(kind: type) -> frozenset[str]:
    """Attributes that methods other than `__init__` assign: counters, caches, the last shape."""
    names = set()
    for each in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        for name, value in vars(each).items():
            code = getattr(value, "__code__", None)
            if code is not None and name not in ("__init__", "__setstate__", "reset_parameters"):
                names |= {s.argval for s in dis.get_instructions(code) if s.opname == "STORE_ATTR"}
    return frozenset(names)


# -- code ------------------------------------------------------------------------------------------


def _forward_code(net: nn.Module) -> list[str]:
    """The source of the user's own `forward` methods, without comments and docstrings."""
    found = set()
    for module in net.modules():
        # a ScriptModule has no `forward` in its class
        for value in (getattr(type(module), "forward", None), vars(module).get("forward")):
            function = inspect.unwrap(getattr(value, "__func__", value)) if value else None
            if isinstance(function, types.FunctionType) and not _is_library(function.__module__):
                found.add(function)
    return sorted(filter(None, map(_source, found)))


@cache
def _source(function: types.FunctionType) -> str:
    try:
        tree: Any = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError, IndexError):
        return ""  # a lambda, generated code, or a file that no longer exists
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
