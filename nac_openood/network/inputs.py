"""Inputs and outputs of networks.

A batch is one tensor, or several in a tuple or a dict: `net(x)`, `net(*x)` or `net(**x)`. Only this
module handles these forms; all others count samples, take rows and call networks through it.
"""

from __future__ import annotations

import inspect
import re
import warnings
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, ContextManager, Iterator, Mapping, Optional, Sequence, Union

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from nac_openood.errors import NACError, ProbeError, first_line

#: A batch: a tensor `[batch, ...]`, or a tuple or dict of such tensors, also nested.
Inputs = Union[Tensor, "tuple[Any, ...]", "dict[str, Any]"]
#: Names under which batches carry labels. They are never passed to a network, because it would
#: compute a loss from them.
LABELS = ("label", "labels")
#: The precisions that a network can be cast to, with their names in files.
PRECISIONS = {torch.bfloat16: "bfloat16", torch.float16: "float16"}
_SEQUENCES = (tuple, list)
_EXPECTED = (
    "a batch as a torch.Tensor [batch, ...], or several tensors in a tuple (passed as `net(*x)`) "
    "or in a dict (passed as `net(**x)`)"
)
_NO_BATCH = "Expected a batch: a single image needs a leading dimension, x[None]."


# -- batches ---------------------------------------------------------------------------------


def as_inputs(value: Any) -> Inputs:
    """Convert the data that a loader yields to the form that this module works with.

    Lists become tuples. Of a mapping (a dict, a Hugging Face `BatchEncoding`), labels and entries
    that no network takes are left out: None, strings, lists of strings.

    Raises:
        ProbeError: there is no tensor, or an entry should be a tensor.
    """
    if isinstance(value, Tensor):
        return value
    found: Any = ()
    if isinstance(value, Mapping):
        entries = {str(n): _entry(n, part) for n, part in value.items() if n not in LABELS}
        found = {name: part for name, part in entries.items() if part is not None}
    elif isinstance(value, _SEQUENCES) and tensors_in(value):
        found = tuple(_entry(index, part) for index, part in enumerate(value))
    if not tensors_in(found):
        whole = " `score_loader` and `select` take loaders." if hasattr(value, "dataset") else ""
        raise ProbeError(f"expected {_EXPECTED}; got {describe_value(value)}.{whole}")
    return found


def _entry(name: Any, part: Any) -> Any:
    """One of several inputs; None if no network takes it."""
    if part is None or isinstance(part, (Tensor, str, bytes)):
        return part if isinstance(part, Tensor) else None
    if isinstance(part, Mapping) and tensors_in(dict(part)):
        return {key: _entry(key, value) for key, value in part.items()}
    if isinstance(part, _SEQUENCES) and all(isinstance(value, Tensor) for value in part):
        return tuple(part)
    if isinstance(part, _SEQUENCES) and all(isinstance(value, str) for value in part):
        return None
    raise ProbeError(
        f"expected {_EXPECTED}; input {name!r} is {describe_value(part)}. Make it a tensor, or "
        "leave it out of the batch. Hugging Face's tokenizers return tensors with "
        "return_tensors='pt'."
    )


def describe_value(value: Any) -> str:
    """Describe a value for an error message: the shapes of tensors, the types of all else."""
    if isinstance(value, Tensor):
        return f"shape {list(value.shape)}"
    kind = type(value).__name__
    if isinstance(value, Mapping):
        parts = [f"{name}: {describe_value(part)}" for name, part in value.items()]
    elif isinstance(value, _SEQUENCES):
        parts = list(dict.fromkeys(map(describe_value, value)))
    else:
        return kind
    return f"{kind} of {', '.join(parts) or 'nothing'}"


def sample_shape(x: Any) -> str:
    """The shape of one sample of a batch, as in "3 x 32 x 32"; "" for inputs by name."""
    return " x ".join(map(str, x.shape[1:])) if isinstance(x, Tensor) else ""


def tensors_in(x: Any) -> list[Tensor]:
    """All tensors of a batch, in order."""
    return [leaf for leaf in tree_leaves(x) if isinstance(leaf, Tensor)]


def mapped(x: Inputs, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor of a batch; optional inputs may be None."""
    return tree_map_only(Tensor, change, x)


def sample_count(x: Inputs) -> int:
    """How many samples a batch has.

    Raises:
        ProbeError: the tensors have different numbers of rows.
    """
    if isinstance(x, Tensor):
        return x.shape[0] if x.ndim else 0  # a symbol where the network is traced for export
    sizes = {tensor.shape[0] if tensor.ndim else 0 for tensor in tensors_in(x)}
    if len(sizes) > 1:
        raise ProbeError(
            f"expected tensors with one row per sample, got {describe_value(x)}. Every input of a "
            "batch needs the same first dimension."
        )
    return max(sizes, default=0)


def rows(x: Inputs, index: Union[slice, Tensor]) -> Any:
    """Some samples of a batch, by a slice or by integers `[n]` on the CPU."""
    return mapped(x, lambda tensor: tensor[index])


def joined_inputs(parts: Sequence[Any]) -> Any:
    """Concatenate batches of one kind."""
    return tree_map(lambda *each: torch.cat(each) if isinstance(each[0], Tensor) else None, *parts)


# -- calling a network -----------------------------------------------------------------------


def device_of(net: nn.Module) -> torch.device:
    """The device of a network; the CPU if it has no parameters."""
    return next((parameter.device for parameter in net.parameters()), torch.device("cpu"))


def call(net: Callable[..., Any], x: Inputs) -> Any:
    """Call a network with a batch."""
    if isinstance(x, dict):
        return net(**x)
    return net(*x) if isinstance(x, tuple) else net(x)


def prepare(net: nn.Module, x: Any) -> Any:
    """Prepare a batch for `net`: tensors on its device, floats in its precision.

    Args:
        net: the network, without wrappers.
        x: a tensor, or several in a tuple, list, dict or Hugging Face encoding.
    """
    if not isinstance(x, Tensor):
        x = _accepted(net, as_inputs(x))
    if not sample_count(x):
        raise ProbeError(f"expected a batch of at least one sample, got {describe_value(x)}.")
    weights = next((p for p in net.parameters() if p.is_floating_point()), None)
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise ProbeError(
            "networks cannot be read inside of torch.func (grad, vmap, ...): a pass computes its "
            "own gradients, and its results have none. Call it outside of these functions."
        )

    def move(tensor: Tensor) -> Tensor:
        # a subclass may be "meta" and keep its values elsewhere
        is_meta = type(tensor) is Tensor and tensor.is_meta
        kind = "nested" if tensor.is_nested else "meta" if is_meta else tensor.layout
        if kind != torch.strided:
            raise ProbeError(
                f"expected dense tensors with values, got {kind}. "
                "Pass x.to_dense(), or pad sequences to one length and pass a mask."
            )
        if weights is not None:
            dtype = weights.dtype if tensor.is_floating_point() else tensor.dtype
            tensor = tensor.to(weights.device, dtype, non_blocking=True)
        return tensor.clone() if tensor.is_inference() else tensor

    return mapped(x, move)


def _accepted(net: nn.Module, x: Inputs) -> Inputs:
    """Drop named inputs that the network's `forward` does not take, with a warning.

    A single tensor under another name is passed without a name: `{'image': x}` is `net(x)`.
    """
    if not isinstance(x, dict):
        return x
    names, takes_any = _signature(net)
    known = {name: part for name, part in x.items() if name in names}
    if names and not known and len(x) == 1:
        (only,) = x.values()
        return only if isinstance(only, Tensor) else tuple(only)
    if takes_any or not known or len(known) == len(x):
        return x
    takes = f"{type(net).__name__}.forward takes {', '.join(names)}"
    other = ", ".join(f"'{name}'" for name in x if name not in known)
    warnings.warn(f"{takes}, not {other}, which is left out.", stacklevel=4)
    return known


def token_mask(net: nn.Module, x: Inputs) -> Optional[Tensor]:
    """Which tokens of a batch are not padding, bool `[batch, tokens]`; None without a mask.

    Masks are recognized by name: `attention_mask` (0 is padding), and PyTorch's `key_padding_mask`
    and the like (True or -inf is padding). Inputs in a tuple have the names of `forward`.
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
    """The names of the parameters of `forward`, and whether it takes any other name, too."""
    net = net.net if isinstance(net, NamedOutput) else net
    try:
        found = list(inspect.signature(net.forward).parameters.values())
    except (TypeError, ValueError):  # compiled code has no signature
        return [], True
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [parameter.name for parameter in found if parameter.kind in by_name]
    return names, any(parameter.kind is parameter.VAR_KEYWORD for parameter in found)


@contextmanager
def explained(x: Any) -> Iterator[None]:
    """Add a hint to an error of the network if the batch shows a common mistake.

    Some networks accept such batches, so they are not refused beforehand.
    """
    try:
        yield
    except Exception as error:
        hint = _common_mistake(x, str(error))
        if not hint or isinstance(error, (NACError, MemoryError, torch.cuda.OutOfMemoryError)):
            raise
        reason = first_line(error).rstrip(".")
        raise ProbeError(f"the network failed on this batch: {reason}. {hint}") from error


#: Errors about shapes, which PyTorch describes from a module's point of view, not the user's.
_SHAPES = re.compile(
    "channels|shapes cannot be multiplied|size of tensor|[iI]nput (image )?(of )?size"
    "|normalized_shape|(image|Input) (height|width)"
)


def _common_mistake(x: Any, error: str) -> Optional[str]:
    tensors = tensors_in(x)
    found = f"The batch has {describe_value(x)}"
    if isinstance(x, _SEQUENCES) and len(tensors) > 1 and len({t.shape for t in tensors}) == 1:
        return (
            f"{found}. A tuple or list holds the inputs of a network with several, `net(*x)`: "
            "samples of one input are joined with torch.stack(x)."
        )
    for tensor in tensors:
        if tensor.ndim > 2 and not tensor.is_floating_point():
            return (
                f"{found} and dtype {tensor.dtype}. Networks take images as floating-point "
                "numbers: pass x.float() / 255, normalized as in training."
            )
        if tensor.ndim == 3 and tensor.shape[0] in (1, 3, 4):
            return f"{found}. {_NO_BATCH}"
    if "nference tensor" in error:
        return (
            "Its forward uses torch.inference_mode, which allows no gradients: use torch.no_grad "
            "there, or LayerConfig(state='output'), which needs none."
        )
    if "positional argument" in error or "keyword argument" in error:
        return (
            f"{found}. Tensors are passed as `net(x)`, tuples as `net(*x)`, dicts as `net(**x)`: "
            "leave out labels."
        )
    another = f"{found}. Does the network take another size, or another number of channels?"
    return another if _SHAPES.search(error) else None


# -- outputs and precision -----------------------------------------------------


def logits_of(output: Any, x: Inputs) -> Tensor:
    """The logits `[batch, classes]` in what a network returned.

    The output is a tensor; a dict or an object with `logits`, such as Hugging Face's outputs and
    named tuples; or another tuple that begins with one of these. `NamedOutput` is for all others.
    A single logit `z` per sample, `[batch]` or `[batch, 1]`, as of classifiers with a sigmoid,
    counts as the two logits `[0, z]`, because `softmax([0, z])[1]` is `sigmoid(z)`.

    Args:
        output: what the network returned.
        x: the batch it was called with.
    """
    found = returned_logits(output)
    if found is not None and not found.is_floating_point():
        raise ProbeError(
            f"expected logits from the network, got {found.dtype} of {describe_value(found)}, such "
            "as predicted classes. Let it return the logits from which they are predicted."
        )
    if found is not None and (found.ndim == 1 or found.shape[1:] == (1,)):
        found = torch.stack([torch.zeros_like(found), found], dim=1).flatten(1)
    dense = found is not None and found.layout == torch.strided
    if found is None or not dense or found.ndim != 2 or found.shape[1] < 2:
        raise ProbeError(
            "expected logits of shape [batch, classes] from the network, or [batch] for two "
            f"classes; got {describe_value(output)}. Name the output with the logits, as `output` "
            "of NACDetector, or wrap the network."
        )
    if found.shape[0] != sample_count(x):
        raise ProbeError(
            f"the network returned logits for {found.shape[0]} samples, given input of "
            f"{describe_value(x)}. {_NO_BATCH}"
        )
    return found


def returned_logits(output: Any) -> Optional[Tensor]:
    """The tensor of logits that a network returned, as it is; None if there is none."""
    first = isinstance(output, _SEQUENCES) and output and not hasattr(output, "logits")
    found = output[0] if first else output
    found = found.get("logits") if isinstance(found, Mapping) else getattr(found, "logits", found)
    return found if isinstance(found, Tensor) else None


class NamedOutput(nn.Module):
    """A network that returns several things, of which one is used.

    Args:
        net: the network.
        output: which one: its number in a tuple, or its name.
    """

    def __init__(self, net: nn.Module, output: Union[int, str]) -> None:
        super().__init__()
        self.net, self.output = net, output

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The output of that name."""
        found = self.net(*args, **kwargs)
        if isinstance(self.output, str) and hasattr(found, self.output):
            return getattr(found, self.output)
        try:
            return found[self.output]
        except (TypeError, LookupError):
            raise ProbeError(
                f"the network returns {describe_value(found)}, without an output {self.output!r}."
            ) from None


def named_output(net: nn.Module, output: Union[int, str, None]) -> nn.Module:
    """The network with that output; None leaves it as it is."""
    if output is not None and not isinstance(output, (int, str)):
        raise NACError(f"`output` must be a number or a name of an output, got {output!r}.")
    return net if output is None or isinstance(net, NamedOutput) else NamedOutput(net, output)


def checked_autocast(dtype: Optional[torch.dtype]) -> Optional[torch.dtype]:
    """The precision to cast to; None is the network's own."""
    if dtype not in (None, *PRECISIONS):
        raise NACError(f"`autocast` must be torch.bfloat16, torch.float16 or None, got {dtype!r}.")
    return dtype


def autocast_to(net: nn.Module, dtype: Optional[torch.dtype]) -> ContextManager[object]:
    """A context in which the network runs in this precision, also inside `torch.autocast`.

    Args:
        net: the network, on its device.
        dtype: what to cast to; None turns autocast off.
    """
    kind = device_of(net).type
    available = torch.amp.is_autocast_available(kind)
    if not available or (dtype is None and not torch.is_autocast_enabled(kind)):
        return nullcontext()
    return torch.autocast(kind, dtype=dtype, enabled=dtype is not None)
