"""Batches out of any loader."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional, Union

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from nac_openood.distributed import world
from nac_openood.errors import NACError
from nac_openood.network.inputs import LABELS, as_inputs, describe_value, rows, sample_count


class Batch(NamedTuple):
    """One of the batches of a loader.

    Args:
        data: what a network takes.
        label: int64 `[batch]`, or None where there are none.
        number: its number in the whole loader.
        start: the number of its first sample.
    """

    data: Any
    label: Optional[Tensor]
    number: int = 0
    start: int = 0

    @property
    def mine(self) -> bool:
        """Whether this process works on it; see `dealing.dealt`."""
        return world().owns(self.number)

    @property
    def size(self) -> int:
        """How many samples it has."""
        return sample_count(self.data)

    def labels(self) -> Tensor:
        """The labels on the CPU, -1 where there are none."""
        if self.label is None:
            return torch.full((self.size,), -1, dtype=torch.int64)
        return self.label.cpu()

    def rows(self, index: Union[slice, Tensor]) -> Batch:
        """Some of the samples, by a slice or whole numbers `[n]`."""
        label = None if self.label is None else self.label[index]
        return self._replace(data=rows(self.data, index), label=label)


def batches(loader: Iterable[Any]) -> Iterator[Batch]:
    """Batches of a loader, whose items are as `as_batch` takes them.

    Errors of ours that were raised in a loading process lose the traceback that PyTorch makes
    part of their message.

    Raises:
        NACError: this is no loader, but a dataset or a batch.
    """
    _check_loader(getattr(loader, "iterable", loader))  # of a progress bar
    try:
        for item in loader:
            yield as_batch(item)
    except NACError as error:
        text = str(error)
        if not text.startswith("Caught NACError in DataLoader worker"):
            raise
        raise NACError(text.rpartition("NACError: ")[2].strip()) from error


def _check_loader(loader: Any) -> None:
    """Refuse what could be iterated over, but does not yield batches."""
    is_dataset = isinstance(loader, Dataset) and not isinstance(loader, IterableDataset)
    is_batch = isinstance(loader, (Tensor, np.ndarray, str, bytes, Mapping))
    iterable = hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")
    if is_dataset or is_batch or not iterable:
        made_of = "a list of it, [(x, y)], or a loader" if is_batch else "a loader"
        raise NACError(
            f"expected a loader that yields batches, got {type(loader).__name__}. Pass {made_of}: "
            "torch.utils.data.DataLoader(dataset, batch_size=100)."
        )


def as_batch(item: Any) -> Batch:
    """One loader item as a `Batch`.

    Args:
        item: `x`, `(x, y, ...)`, OpenOOD's `{'data': x, 'label': y}`, or a dict of named inputs,
            such as a Hugging Face encoding, which may hold `labels`. `x` is a tensor, or several
            in a tuple, list or dict. See `nac_openood.network.inputs.as_inputs` for what is left
            out.
    """
    label = None
    if isinstance(item, Mapping):
        label = next((item[name] for name in LABELS if name in item), None)
        data = item.get("data", item)
    elif isinstance(item, (tuple, list)) and item:
        data, label = item[0], item[1] if len(item) > 1 else None
    else:
        data = item
    try:
        data = as_inputs(data)
    except NACError as error:
        raise NACError(f"a loader must yield {_ITEMS}. In this one: {error}") from error
    return Batch(data, None if label is None else _labels(label, sample_count(data)))


_ITEMS = "tensors x, tuples (x, y) or dicts {'data': x, 'label': y}, or dicts of named inputs"


def _labels(label: Any, n: int) -> Tensor:
    try:
        tensor = torch.as_tensor(label)
    except (TypeError, ValueError, RuntimeError):  # texts, say, or rows of different lengths
        raise _no_labels(n, describe_value(label)) from None
    whole = not tensor.is_complex()
    if tensor.is_floating_point():
        whole = bool((tensor == tensor.long()).all())
    if not whole or tensor.numel() != n:
        raise _no_labels(n, f"{tensor.dtype} of shape {list(tensor.shape)}")
    return tensor.reshape(n).to(torch.int64)


def _no_labels(n: int, got: str) -> NACError:
    return NACError(
        f"expected one whole-number label for each of {n} samples, got {got}. Without usable "
        "labels, let the loader yield plain tensors. A network with several inputs needs them in a "
        "tuple, ((x1, x2), y), or in a dict."
    )


def check_labels(labels: Optional[Tensor], n_classes: int) -> None:
    """Refuse labels that are not classes of the network."""
    if labels is None or not labels.numel():
        return
    least, most = int(labels.min()), int(labels.max())
    if least < 0 or most >= n_classes:
        hint = (
            "-1 marks out-of-distribution samples in OpenOOD; fit on in-distribution data only."
            if least < 0
            else "Is this the dataset that the network was trained on?"
        )
        raise NACError(
            f"labels must be in 0..{n_classes - 1}, the network's classes; found "
            f"{least if least < 0 else most}. {hint}"
        )
