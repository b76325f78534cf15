"""Batches out of any loader, and the class-balanced subset that NAC is fitted on."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

from nac_openood.errors import NACError

#: The seed with which the authors shuffle each class before taking its first samples.
AUTHORS_SEED = 1


class Batch(NamedTuple):
    """Samples `[batch, ...]` and their labels int64 `[batch]`, or None where there are none."""

    data: Tensor
    label: Optional[Tensor]

    def labels(self) -> Tensor:
        """The labels on the CPU, -1 where there are none."""
        if self.label is None:
            return torch.full((self.data.shape[0],), -1, dtype=torch.int64)
        return self.label.cpu()


def batches(loader: Iterable[Any]) -> Iterator[Batch]:
    """Batches of a loader that yields OpenOOD dicts, `(x, y, ...)` tuples or plain tensors."""
    for item in loader:
        yield as_batch(item)


def as_batch(item: Any) -> Batch:
    """One loader item as a `Batch`."""
    if isinstance(item, Mapping):
        if "data" not in item:
            raise NACError(f"a batch dict needs the key 'data'; this one has {sorted(item)}.")
        data, label = item["data"], item.get("label")
    elif isinstance(item, (tuple, list)) and item:
        data, label = item[0], item[1] if len(item) > 1 else None
    else:
        data, label = item, None
    if not isinstance(data, Tensor):
        raise NACError(
            "expected the loader to yield dicts with 'data' and 'label', (x, y) tuples or tensors; "
            f"got {type(item).__name__} holding {type(data).__name__}."
        )
    return Batch(data, None if label is None else _labels(label, data.shape[0]))


def _labels(label: Any, n: int) -> Tensor:
    tensor = torch.as_tensor(label)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.numel() != n:
        raise NACError(
            f"expected one whole-number label for each of {n} samples, got {tensor.dtype} of shape "
            f"{list(tensor.shape)}. Without usable labels, let the loader yield plain tensors."
        )
    return tensor.reshape(n).to(torch.int64)


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
        raise NACError("the data set is empty: there is nothing to fit on.")
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


def fitting_loader(
    loader: Iterable[Any], n_samples: Optional[int], seed: int = AUTHORS_SEED
) -> Iterable[Any]:
    """A loader over the fitting subset, where the data set behind `loader` can be indexed.

    Class-balanced where it tells its labels, a random subset where it does not. Anything else (a
    list of batches, a stream) is returned as it is, for `Quota` to thin.
    """
    if n_samples is None or not isinstance(loader, DataLoader):
        return loader
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return loader
    labels = dataset_labels(dataset)
    if labels is not None:
        indices = balanced_indices(labels, n_samples, seed)
    else:
        indices = np.random.RandomState(seed).permutation(len(dataset))[:n_samples]
    return DataLoader(
        Subset(dataset, indices.tolist()),
        batch_size=loader.batch_size or 1,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
    )
