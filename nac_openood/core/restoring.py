"""What comes out of a file is checked before a rule is made of it: settings, tensors, counts."""

from __future__ import annotations

from typing import Any, Collection, Mapping, Optional, Type

import torch
from torch import Tensor

from nac_openood.core.layer_config import refuse_unknown
from nac_openood.errors import NACError


def stored_layers(settings: Mapping[str, Any], kind: Type[Any]) -> dict[str, Any]:
    """The settings of each layer, from those of a file; `kind` is the rule's `layer_settings`."""
    layers = settings.get("layers")
    if not isinstance(layers, Mapping) or not layers:
        raise NACError(f"'layers' must be settings by layer name, got {layers!r}.")
    return {name: kind.from_dict(found) for name, found in layers.items()}


def stored_tensor(
    tensors: Mapping[str, Tensor], name: str, dtype: torch.dtype, ndim: int
) -> Tensor:
    """A tensor of a file, if it is of the type and number of dimensions that was written."""
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


def refuse_other_tensors(tensors: Mapping[str, Tensor], known: Collection[str]) -> None:
    """Raise where a file has tensors that a rule does not have."""
    refuse_unknown(tensors, known, "tensor")


def check_counts(what: str, counts: Tensor, n_samples: int, width: Optional[int] = None) -> None:
    """Every neuron must have been counted once for each sample, or the counts are not whole.

    Args:
        what: whose counts they are, for the error.
        counts: `[neurons, bins]`.
        n_samples: how many samples were counted.
        width: how many bins there must be; None takes any number.
    """
    if width is not None and counts.shape[1] != width:
        raise NACError(f"the counts of {what} do not add up: {counts.shape[1]} bins, not {width}.")
    whole = (
        counts.shape[0] > 0
        and bool((counts >= 0).all())
        and bool((counts.sum(dim=1) == n_samples).all())
    )
    if not whole:
        raise NACError(f"the counts of {what} do not add up.")


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {n[len(prefix) :]: t for n, t in tensors.items() if n.startswith(prefix)}
