"""The dataset behind a loader: its labels, and the class-balanced subset that NAC is fitted on."""

from __future__ import annotations

from typing import Any, Iterable, Optional, Sequence

import numpy as np
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

from nac_openood.errors import NACError

#: The seed with which the authors shuffle each class before taking its first samples.
AUTHORS_SEED = 1
#: Of loaders that do not say how large their batches are.
_BATCH_SIZE = 32


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
