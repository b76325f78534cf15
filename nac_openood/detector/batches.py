"""Batches of any loader, and which of them this process works on."""

from __future__ import annotations

from itertools import accumulate, count
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, TypeVar, Union

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from nac_openood.distributed import from_main, map_shared, world
from nac_openood.errors import NACError
from nac_openood.network.inputs import LABELS, as_inputs, describe_value, rows, sample_count
from nac_openood.progress import bar

_R = TypeVar("_R")
#: For loaders without a fixed batch size.
_BATCH_SIZE = 32


class Batch(NamedTuple):
    """A batch of a loader.

    Args:
        data: what a network takes.
        label: int64 `[batch]`, or None where there are none.
        number: the index of the batch in the whole loader.
        start: the index of its first sample.
    """

    data: Any
    label: Optional[Tensor]
    number: int = 0
    start: int = 0

    @property
    def in_shard(self) -> bool:
        """Whether this process works on it; see `load_batches`."""
        return world().owns(self.number)

    @property
    def size(self) -> int:
        """Number of samples."""
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
    """Iterate over the batches of a loader; see `as_batch` for its items.

    PyTorch adds a traceback to the message of an error in a worker process of the loader. It is
    removed from the errors of this package.

    Raises:
        NACError: this is not a loader, but a dataset or a batch.
    """
    _check_loader(getattr(loader, "iterable", loader))  # without its progress bar
    try:
        for item in loader:
            yield as_batch(item)
    except NACError as error:
        text = str(error)
        if not text.startswith("Caught NACError in DataLoader worker"):
            raise
        raise NACError(text.rpartition("NACError: ")[2].strip()) from error


def _check_loader(loader: Any) -> None:
    """Refuse iterables that do not yield batches."""
    is_dataset = isinstance(loader, Dataset) and not isinstance(loader, IterableDataset)
    is_batch = isinstance(loader, (Tensor, np.ndarray, str, bytes, Mapping))
    iterable = hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")
    if is_dataset or is_batch or not iterable:
        raise NACError(
            f"expected a loader that yields batches, got {type(loader).__name__}. Pass a list of "
            "batches, [(x, y)], or torch.utils.data.DataLoader(dataset, batch_size=100)."
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
        raise NACError(
            "a loader must yield tensors x, tuples (x, y) or dicts {'data': x, 'label': y}, or "
            f"dicts of named inputs. In this one: {error}"
        ) from error
    return Batch(data, None if label is None else _as_labels(label, sample_count(data)))


def _as_labels(label: Any, n: int) -> Tensor:
    try:
        tensor = torch.as_tensor(label)
        found = f"{tensor.dtype} of shape {list(tensor.shape)}"
        whole = not tensor.is_complex() and tensor.numel() == n
        if whole and tensor.is_floating_point():
            whole = bool((tensor == tensor.long()).all())
    except (TypeError, ValueError, RuntimeError):  # e.g. texts, or rows of different lengths
        found, whole = describe_value(label), False
    if not whole:
        raise NACError(
            f"expected one whole-number label for each of {n} samples, got {found}. Without usable "
            "labels, let the loader yield tensors only. A network with several inputs needs them "
            "in a tuple, ((x1, x2), y), or in a dict."
        )
    return tensor.reshape(n).to(torch.int64)


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


# -- several processes ---------------------------------------------------------------------


def load_batches(loader: Iterable[Any], title: str, progress: Optional[bool]) -> Iterator[Batch]:
    """Iterate over numbered batches; each of several processes gets at least those of its shard.

    Every process gets the first batch, on which automatic layers are found. Apart from that, only
    the shard is loaded if the dataset can be indexed. A stream is read completely by every process.

    Args:
        loader: yields batches.
        title: title of the progress bar.
        progress: whether to show the bar; None shows it on a terminal.
    """
    numbers: Iterable[int] = count()
    starts: Optional[list[int]] = None
    # a subclass may do anything in `__iter__`
    if world().size > 1 and indexable(loader) and type(loader).__iter__ is DataLoader.__iter__:
        indices = _batch_indices(loader)
        numbers = shard_numbers(len(indices))
        starts = [0, *accumulate(map(len, indices))]
        loader = loader_like(loader, indices=[indices[n] for n in numbers])
    start = 0
    for number, batch in zip(numbers, batches(bar(loader, title, progress))):
        yield batch._replace(number=number, start=start if starts is None else starts[number])
        start += batch.size


def map_shards(step: str, loader: Iterable[Any], work: Callable[[Batch], _R]) -> Iterator[_R]:
    """The results of `work` for all batches in order; each process works on its shard."""
    shard = (batch for batch in load_batches(loader, step, progress=False) if batch.in_shard)
    return map_shared(step, shard, work)


def shard_numbers(n_batches: int) -> list[int]:
    """The numbers of the batches that this process loads: its shard, and the first one."""
    return [n for n in range(n_batches) if n == 0 or world().owns(n)]


def _batch_indices(loader: Any) -> list[list[int]]:
    """The samples of each batch. If they are drawn at random, the first process draws."""
    sampler = loader.batch_sampler
    in_order = isinstance(getattr(sampler, "sampler", None), SequentialSampler)
    if isinstance(sampler, list) or (type(sampler) is BatchSampler and in_order):
        return list(sampler)
    if world().detached:
        raise NACError(
            "shards that run on their own need the samples in one fixed order. Make the loader "
            "with shuffle=False."
        )

    def draw() -> list[list[int]]:
        """Draw as `iter(loader)` does, which also draws a seed for its workers."""
        order = iter(sampler)
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        return list(order)

    return from_main("order of the samples", draw)


def indexable(loader: Any) -> bool:
    """Whether `loader` is a `DataLoader` that makes batches of a dataset that can be indexed."""
    dataset = getattr(loader, "dataset", None)
    return (
        isinstance(loader, DataLoader)
        and loader.batch_sampler is not None  # otherwise its samples are batches
        and not isinstance(dataset, IterableDataset)
        and hasattr(dataset, "__len__")
    )


def loader_like(
    loader: Any, dataset: Any = None, indices: Optional[list[list[int]]] = None
) -> DataLoader[Any]:
    """A loader with the workers and options of another one.

    Args:
        loader: the other one.
        dataset: None uses that of `loader`.
        indices: the samples of each batch; None uses all of them in order, in batches of the same
            size.
    """
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    size = size if isinstance(size, int) and size > 0 else _BATCH_SIZE
    batching = {"batch_size": size} if indices is None else {"batch_sampler": indices}
    return DataLoader(
        loader.dataset if dataset is None else dataset,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        **batching,
    )
