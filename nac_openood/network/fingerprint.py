"""Tell networks apart: counts fitted on one network mean nothing for another."""

from __future__ import annotations

import hashlib
from typing import Iterable, Mapping

import torch
from torch import nn

from nac_openood.errors import NACError
from nac_openood.network.module_settings import class_settings, module_classes, module_settings
from nac_openood.network.replica import unwrap
from nac_openood.network.running_code import BYTECODE_OF, Reached, own_function
from nac_openood.tensor_files import raw_bytes

#: What the names of settings begin with in a fingerprint. Early ones have none of the second kind.
_SETTING, _OF_CLASS = "setting ", "class setting "
_SHORT = 16


def fingerprint(net: nn.Module) -> dict[str, str]:
    """Hashes that are equal for equal networks, in every process and on every device.

    Returns:
        `structure`: names, shapes and precision of parameters and buffers. `weights`: their
        values. `modules`: names and classes of the modules, in order. `setting CLASS.NAME`: what
        modules compute by, such as stride and eps; see `module_settings`. `class setting
        CLASS.NAME`: the same of attributes of the user's own classes. `bytecode` and `source`: the
        user's own code that `forward` runs; see `running_code`.
    """
    inner = unwrap(net)
    code = _code(inner)
    settings = {
        **{f"{_SETTING}{name}": lines for name, lines in module_settings(inner).items()},
        **{f"{_OF_CLASS}{name}": ls for name, ls in class_settings(inner, code.asked).items()},
    }
    return {
        **_tensors(inner),
        "modules": _hash(module_classes(inner)),
        **{name: _hash(lines)[:_SHORT] for name, lines in settings.items()},
        "bytecode": _hash(code.bytecode),
        "bytecode_of": BYTECODE_OF,
        "source": "" if code.source is None else _hash(code.source),
    }


def identity(net: nn.Module) -> str:
    """A short text that tells weights apart, the same in all versions of Python and torch."""
    found = _tensors(unwrap(net))
    return _hash([found["structure"], found["weights"]])[:32]


def difference(saved: Mapping[str, str], net: nn.Module) -> str:
    """How `net` differs from the saved fingerprint, in words; "" if it does not.

    Fingerprints of early versions have `structure` and `weights` only, and are compared by these.
    """
    if not {"structure", "weights"} <= set(saved):
        raise NACError("its fingerprint of the network has no 'structure' and 'weights'.")
    now = fingerprint(net)
    if now["structure"] != saved["structure"]:
        return "its parameters have other names, shapes or precision (another architecture)"
    if now["weights"] != saved["weights"]:
        return "it has the same architecture but other weights (another checkpoint)"
    if now["modules"] != saved.get("modules", now["modules"]):
        return "it has the same weights but other modules"
    # a setting that only one of them has is new in another version of a library, or in this package
    for name in now:
        if name.startswith((_SETTING, _OF_CLASS)) and now[name] != saved.get(name, now[name]):
            return f"it has the same weights but another {name.partition(_SETTING)[2]}"
    return "" if _same_code(saved, now) else "it has the same weights but another `forward`"


def _same_code(saved: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether bytecode or source agree; true if neither can be compared."""
    compared = []
    if saved.get("bytecode_of") == now["bytecode_of"]:
        compared.append(saved.get("bytecode") == now["bytecode"])
    if saved.get("source") and now["source"]:
        compared.append(saved["source"] == now["source"])
    return any(compared) or not compared


def _tensors(net: nn.Module) -> dict[str, str]:
    structure, weights = hashlib.sha256(), hashlib.sha256()
    for name, tensor in sorted(net.state_dict().items()):
        if not isinstance(tensor, torch.Tensor):
            continue  # a module may keep other extra state
        name = name.replace("_orig_mod.", "")
        structure.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        weights.update(raw_bytes(tensor.detach().cpu()))
    return {"structure": structure.hexdigest(), "weights": weights.hexdigest()}


def _hash(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "backslashreplace")).hexdigest()


def _code(net: nn.Module) -> Reached:
    """What the `forward` of all modules reaches."""
    reached = Reached()
    for module in net.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for value in (type(module).forward, *vars(module).values()):
            function = own_function(value)
            if function is not None:
                reached.add(function, type(module))
    return reached
