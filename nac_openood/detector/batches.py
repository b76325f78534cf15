"""Batches out of any loader, and the class-balanced subset that NAC is fitted on."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)

from nac_openood.distributed import world
from nac_openood.errors import NACError
from nac_openood.network.inputs import LABELS, as_inputs, mapped, rows, sample_count

#: The seed with which the authors shuffle each class before taking its first samples.
AUTHORS_SEED = 1
#: Of loaders that do not say how large their batches are.
_BATCH_SIZE = 32


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

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with every tensor of its data changed."""
        return self._replace(data=mapped(self.data, change))

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
    if is_dataset or isinstance(loader, (Tensor, np.ndarray, str, bytes, Mapping)):
        made_of = "a loader" if is_dataset else "a list of it, [(x, y)], or a loader"
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
    tensor = torch.as_tensor(label)
    whole = not tensor.is_complex()
    if tensor.is_floating_point():
        whole = bool((tensor == tensor.long()).all())
    if not whole or tensor.numel() != n:
        raise NACError(
            f"expected one whole-number label for each of {n} samples, got {tensor.dtype} of shape "
            f"{list(tensor.shape)}. Without usable labels, let the loader yield plain tensors. A "
            "network with several inputs needs them in a tuple, ((x1, x2), y), or in a dict."
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


def dataset_labels(dataset: Any) -> Optional[np.ndarray]:
    """All labels of a dataset without loading its samples, or None where it does not tell.

    Knows `Subset`, `ConcatDataset`, `TensorDataset`, OpenOOD's `.imglist` lines ("path label")
    and torchvision's `.targets`, `.labels` and `.samples`.
    """
    if isinstance(dataset, Subset):
        inner = dataset_labels(dataset.dataset)
        return None if inner is None else inner[np.asarray(dataset.indices, dtype=int)]
    if isinstance(dataset, ConcatDataset):
        parts = [dataset_labels(part) for part in dataset.datasets]
        return None if any(p is None for p in parts) else np.concatenate([*parts])
    if isinstance(dataset, TensorDataset):
        return _whole_numbers(dataset.tensors[1]) if len(dataset.tensors) > 1 else None
    if hasattr(dataset, "imglist"):
        return _whole_numbers([line.strip().split(" ", 1)[1] for line in dataset.imglist])
    for name in ("targets", "labels"):
        if hasattr(dataset, name):
            return _whole_numbers(getattr(dataset, name))
    if hasattr(dataset, "samples"):
        return _whole_numbers([sample[1] for sample in dataset.samples])
    return None


def _whole_numbers(values: Any) -> Optional[np.ndarray]:
    try:
        labels = np.asarray(values).astype(np.int64)
    except (TypeError, ValueError):
        return None
    return labels if labels.ndim == 1 else None


def balanced_indices(
    labels: Sequence[int] | np.ndarray, n_samples: int, seed: int = AUTHORS_SEED
) -> np.ndarray:
    """Indices of `n_samples // classes` samples of each class, as the authors draw them.

    Each class's indices, in list order, are shuffled with `RandomState(seed)`; the first ones are
    taken, class after class in order of appearance. A smaller class gives all it has.
    """
    labels = np.asarray(labels)
    classes = list(dict.fromkeys(labels.tolist()))
    if not classes:
        raise NACError("the dataset is empty: there is nothing to fit on.")
    if n_samples < len(classes):
        raise too_few(n_samples, len(classes))
    taken = []
    for label in classes:
        indices = np.flatnonzero(labels == label)
        np.random.RandomState(seed).shuffle(indices)
        taken.append(indices[: n_samples // len(classes)])
    return np.concatenate(taken)


def too_few(n_samples: int, n_classes: int) -> NACError:
    """The error of a fitting set smaller than the number of classes."""
    return NACError(
        f"n_samples={n_samples} is less than one sample for each of the {n_classes} classes. "
        f"Ask for at least {n_classes}, or for n_samples=None to use everything."
    )


def indexable(loader: Any) -> bool:
    """Whether `loader` is a `DataLoader` that makes batches of a dataset that can be indexed."""
    dataset = getattr(loader, "dataset", None)
    return (
        isinstance(loader, DataLoader)
        and loader.batch_sampler is not None  # the samples of such a dataset are batches
        and not isinstance(dataset, IterableDataset)
        and hasattr(dataset, "__len__")
    )


def fitting_indices(
    labels: Optional[np.ndarray], size: int, n_samples: int, seed: int = AUTHORS_SEED
) -> np.ndarray:
    """Which of `size` samples to fit on: class-balanced where labels are known, else random."""
    if labels is not None:
        return balanced_indices(labels, n_samples, seed)
    return np.random.RandomState(seed).permutation(size)[:n_samples]


def fitting_loader(
    loader: Iterable[Any], n_samples: Optional[int], seed: int = AUTHORS_SEED
) -> Iterable[Any]:
    """A loader over the fitting subset, where the dataset behind `loader` can be indexed.

    Anything else (a list of batches, a stream) is returned as it is, for `Quota` to thin.
    """
    if n_samples is None or not indexable(loader):
        return loader
    dataset: Any = loader.dataset  # type: ignore[attr-defined]
    indices = fitting_indices(dataset_labels(dataset), len(dataset), n_samples, seed)
    return loader_like(loader, Subset(dataset, indices.tolist()))


def loader_like(
    loader: Any, dataset: Any = None, plan: Optional[list[list[int]]] = None
) -> DataLoader[Any]:
    """A loader like `loader`.

    Args:
        loader: whose processes and ways of loading to take.
        dataset: another one; None takes that of `loader`.
        plan: the samples of each batch; None takes all of them in order, in batches of the same
            size.
    """
    batching = {"batch_size": _batch_size(loader)} if plan is None else {"batch_sampler": plan}
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


def _batch_size(loader: Any) -> int:
    """How many samples a batch has; a sampler of somebody's own may not tell."""
    told = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    return told if isinstance(told, int) and told > 0 else _BATCH_SIZE
