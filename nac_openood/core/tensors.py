"""Functions on tensors: precision and devices, logits, files, programs for other runtimes."""

from __future__ import annotations

import math
import platform
from importlib.metadata import version
from typing import Any, Mapping, Optional

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nac_openood.__about__ import __version__
from nac_openood.errors import NACError

# -- precision and devices ------------------------------------------------------------------


def double(tensor: Tensor) -> Tensor:
    """`tensor` in float64, on the CPU if its device has no float64 (Apple's MPS)."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).to(torch.float64)


class DeviceTensors:
    """Tensors that are moved to a device once; moving them for every batch would stall a GPU.

    Threads can share an instance, even if they use different devices.

    Args:
        tensors: any number, all on one device.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors = tensors

    def on(self, device: torch.device) -> tuple[Tensor, ...]:
        """The tensors on a device, where they stay until they are needed on another."""
        tensors = self._tensors
        if tensors[0].device != device:
            tensors = self._tensors = tuple(tensor.to(device) for tensor in tensors)
        return tensors


# -- scores of logits; higher means more in-distribution ------------------------------------

_CLIP = 1e-12
#: How many of the largest probabilities GEN uses, and the exponent, which is below 1 so that small
#: ones count. Both are the authors' values.
_TOP, _GAMMA = 100, 0.1


def msp(logits: Tensor) -> Tensor:
    """The largest probability (Hendrycks & Gimpel, ICLR 2017), float64 `[batch]`."""
    return double(logits).softmax(dim=1).amax(dim=1)


def energy(logits: Tensor) -> Tensor:
    """The negative free energy (Liu et al., NeurIPS 2020), float64 `[batch]`."""
    return double(logits).logsumexp(dim=1)


def gen(logits: Tensor) -> Tensor:
    """GEN (Liu et al., CVPR 2023), the negative generalized entropy, float64 `[batch]`."""
    p = double(logits).softmax(dim=1)
    p = p.topk(min(_TOP, p.shape[1]), dim=1).values.clamp(_CLIP, 1 - _CLIP)
    return -(p**_GAMMA * (1 - p) ** _GAMMA).sum(dim=1)


# -- tensors from files ---------------------------------------------------------------------


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that numbers in files depend on."""
    others = {name: version(name) for name in ("torchvision", "scikit-learn", "pillow")}
    return {
        "nac_openood": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        **others,
    }


def stored_tensor(
    tensors: Mapping[str, Tensor], name: str, dtype: torch.dtype, ndim: int
) -> Tensor:
    """A tensor of a file, if it has the type and number of dimensions that were saved."""
    if name not in tensors:
        raise NACError(f"the tensor '{name}' is missing.")
    found = tensors[name]
    if found.dtype != dtype or found.ndim != ndim:
        raise NACError(
            f"the tensor '{name}' must be {dtype} with {ndim} dimensions, got {found.dtype} of "
            f"shape {list(found.shape)}."
        )
    return found


def stored_values(tensors: Mapping[str, Tensor], name: str, ndim: int) -> Tensor:
    """Floating-point values of a file, all of them finite."""
    is_float = name in tensors and tensors[name].is_floating_point()
    found = stored_tensor(tensors, name, tensors[name].dtype if is_float else torch.float32, ndim)
    if not bool(found.isfinite().all()):
        raise NACError(f"the tensor '{name}' has NaN or Inf values.")
    return found


def check_counts(what: str, counts: Tensor, n_samples: int, width: Optional[int] = None) -> None:
    """Raise unless every neuron was counted once for each sample.

    Args:
        what: the name of the counts, for errors.
        counts: `[neurons, bins]`.
        n_samples: number of samples that were counted.
        width: the expected number of bins; None accepts any number.
    """
    if width is not None and counts.shape[1] != width:
        raise NACError(f"the counts of {what} do not add up: {counts.shape[1]} bins, not {width}.")
    complete = counts.shape[0] > 0 and bool((counts >= 0).all())
    if not complete or bool((counts.sum(dim=1) != n_samples).any()):
        raise NACError(f"the counts of {what} do not add up.")


# -- programs for other runtimes ------------------------------------------------------------

#: Operations, by the names that PyTorch gives them, whose Python numbers may be tensors as well.
_ARITHMETIC = frozenset(
    f"{prefix}{name}{suffix}"
    for name in ("add", "sub", "mul", "div", "truediv", "pow", "lt", "le", "gt", "ge", "clamp")
    for prefix, suffix in (("", ""), ("", "_"), ("__", "__"), ("__r", "__"), ("__i", "__"))
)


class Portable(TorchFunctionMode):
    """A context in which results stay the same and can be traced for other runtimes, e.g. ONNX.

    ONNX has no `torch.searchsorted`, so it is replaced by simpler operations. Its exporter rounds
    Python numbers to float32, so they become float64 tensors, which it leaves as they are.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Called by PyTorch in place of its functions."""
        kwargs = kwargs or {}
        if func is torch.searchsorted:
            return searchsorted(*args, **kwargs)
        if func is torch.bucketize:
            return searchsorted(args[1], args[0], **kwargs)
        if getattr(func, "__name__", "") in _ARITHMETIC:
            # with integer tensors, a float64 tensor would change the type of the result
            values = (*args, *kwargs.values())
            floats = any(isinstance(v, Tensor) and v.is_floating_point() for v in values)
            dtype = torch.float64 if floats else torch.get_default_dtype()
            args = tuple(_as_tensor(value, dtype) for value in args)
            kwargs = {name: _as_tensor(value, dtype) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _as_tensor(value: Any, dtype: torch.dtype) -> Any:
    return torch.tensor(value, dtype=dtype) if isinstance(value, float) else value


def searchsorted(ordered: Tensor, values: Tensor, *, right: bool = False) -> Tensor:
    """How many of `ordered` are smaller than each value, or with `right` not larger.

    The same as `torch.searchsorted`, except that NaN has none below it. A value is compared with
    the first number of every block, then with all of one block, which takes memory for `sqrt(n)`
    numbers per value.

    Args:
        ordered: in increasing order, `[n]`.
        values: any shape.
        right: whether to count equal ones, too.

    Returns:
        int64 in the shape of `values`.
    """
    n = ordered.shape[0]
    size = math.isqrt(max(0, n - 1)) + 1
    padding = ordered.new_full((size * size - n,), float("inf"))
    blocks = torch.cat([ordered, padding]).reshape(size, size)
    x = values.reshape(-1, 1)

    def count(numbers: Tensor) -> Tensor:
        return (numbers <= x if right else numbers < x).sum(dim=1)

    block = (count(blocks[:, 0]) - 1).clamp(min=0)
    found = block * size + count(blocks.index_select(0, block))
    return found.clamp(max=n).reshape(values.shape)
