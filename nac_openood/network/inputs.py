"""What a network takes: one tensor, or several in a tuple or a dict.

`net(x)` for a tensor, `net(*x)` for a tuple, `net(**x)` for a dict. This file is the one place that
knows it. All else counts samples, takes rows and calls networks through the functions here.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any, Callable, Mapping, Optional, Sequence, Union

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map, tree_map_only

from nac_openood.errors import ProbeError

#: A batch: a tensor `[batch, ...]`, or a tuple or dict of such tensors, also nested.
Inputs = Union[Tensor, "tuple[Any, ...]", "dict[str, Any]"]
#: Names under which batches carry labels. They are never passed to a network, which would compute
#: a loss from them.
LABELS = ("label", "labels")
_PACKED = (tuple, list)


def as_inputs(value: Any) -> Inputs:
    """Whatever a loader yields as data, in the form that the functions of this file take.

    Lists become tuples. Of a mapping (a dict, a Hugging Face `BatchEncoding`), labels and entries
    that no network takes are left out: None, strings, lists of strings.

    Raises:
        ProbeError: no tensor is found, or something that should have been made one.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        named = {str(name): _entry(name, part) for name, part in value.items()}
        kept = {n: part for n, part in named.items() if part is not None and n not in LABELS}
        if tensors_in(kept):
            return kept
    elif isinstance(value, _PACKED) and tensors_in(value):
        return tuple(_entry(place, part) for place, part in enumerate(value))
    raise ProbeError(f"expected {_WANTED}; got {said(value)}.{_conversion(value)}")


_WANTED = (
    "a batch as a torch.Tensor [batch, ...], or several tensors in a tuple (passed as `net(*x)`) "
    "or in a dict (passed as `net(**x)`)"
)


def _entry(name: Any, part: Any) -> Any:
    """One of several inputs; None where no network takes it."""
    if part is None or isinstance(part, Tensor) or _is_text(part) or name in LABELS:
        return part if isinstance(part, Tensor) and name not in LABELS else None
    if isinstance(part, Mapping) and tensors_in(part):
        return {key: _entry(key, value) for key, value in part.items()}
    if isinstance(part, _PACKED) and all(isinstance(value, Tensor) for value in part):
        return tuple(part)
    raise ProbeError(
        f"expected {_WANTED}; input {name!r} is {said(part)}. Make it a tensor, or leave it out "
        "of the batch. Hugging Face's tokenizers return tensors with return_tensors='pt'."
    )


def _is_text(part: Any) -> bool:
    if isinstance(part, _PACKED):
        return bool(part) and all(isinstance(value, str) for value in part)
    return isinstance(part, (str, bytes))


def said(value: Any) -> str:
    """What a value is, for errors."""
    if isinstance(value, Mapping):
        kinds = {str(name): type(part).__name__ for name, part in value.items()}
        return f"{type(value).__name__} of {kinds}" if kinds else f"an empty {type(value).__name__}"
    if isinstance(value, _PACKED):
        kinds_in = sorted({type(part).__name__ for part in value})
        return f"{type(value).__name__} of {', '.join(kinds_in) or 'nothing'}"
    return type(value).__name__


def _conversion(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return " Convert it: torch.from_numpy(x).float()."
    if isinstance(value, (str, bytes)):
        return " Load and transform the file, or tokenize the text, first."
    return ""


def device_of(net: nn.Module) -> torch.device:
    """Where a network is; the CPU if it has no parameters."""
    return next((parameter.device for parameter in net.parameters()), torch.device("cpu"))


def tensors_in(x: Any) -> list[Tensor]:
    """All tensors of a batch, in order."""
    if isinstance(x, Tensor):
        return [x]
    parts = x.values() if isinstance(x, Mapping) else x if isinstance(x, _PACKED) else ()
    return [tensor for part in parts for tensor in tensors_in(part)]


def mapped(x: Inputs, change: Callable[[Tensor], Tensor]) -> Any:
    """A batch with every tensor changed; None may stand in the place of an optional input."""
    return tree_map_only(Tensor, change, x)


def sample_count(x: Inputs) -> int:
    """How many samples a batch has.

    Raises:
        ProbeError: there are none, or tensors do not agree on their number.
    """
    if isinstance(x, Tensor):
        return x.shape[0] if x.ndim else 0
    sizes = {tensor.shape[0] if tensor.ndim else None for tensor in tensors_in(x)}
    if len(sizes) > 1 or None in sizes:
        raise ProbeError(
            f"expected tensors with one row per sample, got {shapes(x)}. Every input of a batch "
            "needs the same first dimension."
        )
    return int(sizes.pop() or 0) if sizes else 0


def shapes(x: Inputs) -> str:
    """The shapes in a batch, for errors."""
    if isinstance(x, Tensor):
        return f"shape {list(x.shape)}"
    named = x.items() if isinstance(x, Mapping) else enumerate(x)
    told = [f"{n}: {[list(t.shape) for t in tensors_in(part)]}" for n, part in named]
    return f"shapes {{{', '.join(told)}}}".replace("[[", "[").replace("]]", "]")


def rows(x: Inputs, index: Union[slice, Tensor]) -> Any:
    """Some samples of a batch, by a slice or whole numbers `[n]`."""

    def taken(tensor: Tensor) -> Tensor:
        return tensor[index.to(tensor.device) if isinstance(index, Tensor) else index]

    return mapped(x, taken)


def joined_inputs(parts: Sequence[Any]) -> Any:
    """Batches of one kind, one after the other, as one batch."""
    return tree_map(lambda *each: torch.cat(each) if isinstance(each[0], Tensor) else None, *parts)


def call(net: Callable[..., Any], x: Inputs) -> Any:
    """What a network returns for a batch."""
    if isinstance(x, dict):
        return net(**x)
    return net(*x) if isinstance(x, tuple) else net(x)


def accepted(net: nn.Module, x: Inputs) -> Inputs:
    """Without named inputs that the network's `forward` does not take, which are warned about.

    A single tensor under another name is passed without a name: `{'image': x}` is `net(x)`.

    Args:
        net: the network, without wrappers.
        x: from `as_inputs`.

    Raises:
        ProbeError: `forward` takes none of several names.
    """
    if not isinstance(x, dict):
        return x
    names, any_name = _signature(net)
    known = {name: part for name, part in x.items() if name in names}
    if names and not known and len(x) == 1:
        (only,) = x.values()
        return only if isinstance(only, Tensor) else tuple(only)
    if any_name or len(known) == len(x):
        return x
    other = ", ".join(f"'{name}'" for name in x if name not in known)
    takes = f"{type(net).__name__}.forward takes {', '.join(names) or 'no named input'}"
    if not known:
        raise ProbeError(
            f"{takes}, and the batch has {other}. Name the inputs as the network does, yield them "
            "in a tuple, or wrap a network that takes a dict as its only argument."
        )
    warnings.warn(f"{takes}, not {other}, which it is not given.", UserWarning, stacklevel=4)
    return known


def token_mask(net: nn.Module, x: Inputs) -> Optional[Tensor]:
    """Which tokens of a batch are no padding, bool `[batch, tokens]`; None if it has no such mask.

    Known by name: `attention_mask` (0 is padding), and PyTorch's `key_padding_mask` and the like
    (True or -inf is padding). Inputs in a tuple have the names that `forward` gives them.
    """
    if isinstance(x, Tensor):
        return None
    named = x if isinstance(x, dict) else dict(zip(_signature(net)[0], x))
    for name, mask in named.items():
        if isinstance(mask, Tensor) and mask.ndim == 2:
            if name == "attention_mask":
                return mask != 0
            if name.endswith("key_padding_mask"):
                return mask == 0
    return None


def _signature(net: nn.Module) -> tuple[list[str], bool]:
    """The names of what `forward` takes, and whether it takes any other name, too."""
    try:
        found = list(inspect.signature(net.forward).parameters.values())
    except (TypeError, ValueError):  # compiled code does not tell
        return [], True
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [parameter.name for parameter in found if parameter.kind in by_name]
    return names, any(parameter.kind is parameter.VAR_KEYWORD for parameter in found)
