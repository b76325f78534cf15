"""Arithmetic that survives in programs for other runtimes, such as ONNX."""

from __future__ import annotations

import math
from typing import Any, Iterable

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

#: Operations, by the names that PyTorch gives them, whose Python numbers may be tensors as well.
_ARITHMETIC = frozenset(
    f"{prefix}{name}{suffix}"
    for name in ("add", "sub", "mul", "div", "truediv", "pow", "lt", "le", "gt", "ge", "clamp")
    for prefix, suffix in (("", ""), ("", "_"), ("__", "__"), ("__r", "__"), ("__i", "__"))
)


class Portable(TorchFunctionMode):
    """A context in which results stay the same, and can be traced for other runtimes.

    ONNX has no `torch.searchsorted`, so it is replaced by simpler operations. Its exporter rounds
    numbers that stand in the code to float32, so they become float64 tensors, which it leaves as
    they are.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Called by PyTorch in the place of its functions."""
        kwargs = kwargs or {}
        if func is torch.searchsorted:
            return searchsorted(*args, **kwargs)
        if func is torch.bucketize:
            values, ordered = args
            return searchsorted(ordered, values, **kwargs)
        if getattr(func, "__name__", "") in _ARITHMETIC:
            dtype = _dtype_of_numbers((*args, *kwargs.values()))
            args = tuple(_as_tensor(value, dtype) for value in args)
            kwargs = {name: _as_tensor(value, dtype) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _dtype_of_numbers(values: Iterable[Any]) -> torch.dtype:
    """The type that Python numbers need for a result of the type that PyTorch would give it.

    Beside floating-point tensors, numbers do not count. Beside whole numbers they make the result
    one of the default type, where a float64 tensor would make it float64.
    """
    floating = any(isinstance(v, Tensor) and v.is_floating_point() for v in values)
    return torch.float64 if floating else torch.get_default_dtype()


def _as_tensor(value: Any, dtype: torch.dtype) -> Any:
    return torch.tensor(value, dtype=dtype) if isinstance(value, float) else value


def searchsorted(ordered: Tensor, values: Tensor, *, right: bool = False) -> Tensor:
    """How many of `ordered` are smaller than each value, or with `right` not larger.

    The same as `torch.searchsorted`, except that NaN has none below it. The numbers are cut into
    blocks: a value is compared with the first of every block, then with all of one block. For `n`
    numbers, that takes memory for `sqrt(n)` of them per value.

    Args:
        ordered: in increasing order, `[n]`.
        values: any shape.
        right: whether to count equal ones, too.

    Returns:
        int64 in the shape of `values`.
    """
    n = ordered.shape[0]
    size = math.isqrt(max(0, n - 1)) + 1
    beyond = ordered.new_full((size * size - n,), float("inf"))
    blocks = torch.cat([ordered, beyond]).reshape(size, size)
    x = values.reshape(-1, 1)

    def count(numbers: Tensor) -> Tensor:
        return (numbers <= x if right else numbers < x).sum(dim=1)

    block = (count(blocks[:, 0]) - 1).clamp(min=0)
    found = block * size + count(blocks.index_select(0, block))
    return found.clamp(max=n).reshape(values.shape)
