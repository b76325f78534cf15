"""Which samples to fit on: the labels of a dataset, and the class-balanced subset of the paper."""

from __future__ import annotations

import warnings
from collections import Counter
from itertools import chain
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence

import numpy as np
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from nac_openood.core.layer_config import whole_number
from nac_openood.detector.batches import Batch, check_labels, indexable, load_batches, loader_like
from nac_openood.errors import NACError
from nac_openood.network.probe import count_classes

#: The seed with which the authors shuffle each class before taking its first samples.
AUTHORS_SEED = 1


def dataset_labels(dataset: Any) -> Optional[np.ndarray]:
    """All labels of a dataset without loading its samples, or None where that is not possible.

    Supports `Subset`, `ConcatDataset`, `TensorDataset`, OpenOOD's `.imglist` lines ("path label")
    and torchvision's `.targets`, `.labels` and `.samples`.
    """
    if isinstance(dataset, Subset):
        inner = dataset_labels(dataset.dataset)
        return None if inner is None else inner[np.asarray(dataset.indices, dtype=int)]
    if isinstance(dataset, ConcatDataset):
        parts = [dataset_labels(part) for part in dataset.datasets]
        return None if any(p is None for p in parts) else np.concatenate([*parts])
    values: Any = None
    if isinstance(dataset, TensorDataset):
        values = dataset.tensors[1] if len(dataset.tensors) > 1 else None
    elif hasattr(dataset, "imglist"):
        values = [line.strip().split(" ", 1)[1] for line in dataset.imglist]
    elif hasattr(dataset, "targets") or hasattr(dataset, "labels"):
        values = dataset.targets if hasattr(dataset, "targets") else dataset.labels
    elif hasattr(dataset, "samples"):
        values = [sample[1] for sample in dataset.samples]
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
    taken, class after class in order of appearance. Of a smaller class, all samples are taken.
    """
    labels = np.asarray(labels)
    classes = list(dict.fromkeys(labels.tolist()))
    if not classes:
        raise NACError("the dataset is empty: there is nothing to fit on.")
    _check_enough(n_samples, len(classes))
    taken = []
    for label in classes:
        indices = np.flatnonzero(labels == label)
        np.random.RandomState(seed).shuffle(indices)
        taken.append(indices[: n_samples // len(classes)])
    return np.concatenate(taken)


def _check_enough(n_samples: int, n_classes: int) -> None:
    if n_samples < n_classes:
        raise NACError(
            f"n_samples={n_samples} is less than one sample for each of the {n_classes} classes. "
            f"Ask for at least {n_classes}, or for n_samples=None to use everything."
        )


def fitting_indices(
    labels: Optional[np.ndarray], size: int, n_samples: int, seed: int = AUTHORS_SEED
) -> np.ndarray:
    """Which of `size` samples to fit on: class-balanced if there are labels, else random."""
    if labels is not None:
        return balanced_indices(labels, n_samples, seed)
    return np.random.RandomState(seed).permutation(size)[:n_samples]


def fitting_loader(
    loader: Iterable[Any], n_samples: Optional[int], seed: int = AUTHORS_SEED
) -> Iterable[Any]:
    """A loader over the fitting subset, if the dataset of `loader` can be indexed.

    Any other loader (a list of batches, a stream) is returned as it is; see `take_quota`.
    """
    if n_samples is None or not indexable(loader):
        return loader
    dataset: Any = loader.dataset  # type: ignore[attr-defined]
    indices = fitting_indices(dataset_labels(dataset), len(dataset), n_samples, seed)
    return loader_like(loader, Subset(dataset, indices.tolist()))


def fitting_batches(
    net: nn.Module,
    loader: Iterable[Any],
    n_samples: Optional[int],
    counts: Counter[int],
    title: str,
    progress: Optional[bool],
    seed: int = AUTHORS_SEED,
) -> Iterator[Batch]:
    """Iterate over the samples to fit on, in batches as of `load_batches`.

    Args:
        net: the network; labels must be among its classes.
        loader: batches, as in `NACDetector.fit`.
        n_samples: size of the class-balanced subset; None takes everything.
        counts: filled with the number of samples of each class in this process, also of classes
            without samples.
        title: title of the progress bar.
        progress: whether to show it; None shows it on a terminal.
        seed: random seed of the draw.
    """
    if n_samples is not None:
        n_samples = whole_number("n_samples", n_samples, 1)
    subset = fitting_loader(loader, n_samples, seed)
    found = load_batches(subset, title, progress)
    first = next(found, None)
    if first is None:
        raise NACError("the loader yielded no samples: there is nothing to fit on.")
    n_classes = count_classes(net, first.data)
    counts.update(dict.fromkeys(range(n_classes), 0))
    found = chain([first], found)
    if n_samples is not None and subset is loader:
        found = take_quota(found, n_samples, n_classes)
    for batch in found:
        check_labels(batch.label, n_classes)
        if batch.in_shard and batch.label is not None:
            counts.update(batch.label.tolist())
        yield batch


def take_quota(batches: Iterable[Batch], n_samples: int, n_classes: int) -> Iterator[Batch]:
    """The first `n_samples // n_classes` samples of each class, for loaders without indices.

    Without labels, the first `n_samples`. Batches are numbered anew; no more of them are loaded
    than needed.
    """
    _check_enough(n_samples, n_classes)
    each, left, number = n_samples // n_classes, n_samples, 0
    taken: Counter[int] = Counter()
    for batch in batches:
        rows = list(range(min(batch.size, left)))
        if batch.label is not None:
            rows = []
            for row, label in enumerate(batch.label.tolist()):
                if taken[label] < each:
                    taken[label] += 1
                    rows.append(row)
        if rows:
            part = batch.rows(torch.tensor(rows))
            yield part._replace(number=number, start=n_samples - left)
            number += 1
            left -= len(rows)
        if left <= 0 or sum(taken.values()) == each * n_classes:
            return


def warn_if_uneven(counts: Mapping[int, int], n_samples: Optional[int]) -> None:
    """Warn if classes are missing, or have fewer samples than their share."""
    found = sum(count > 0 for count in counts.values())
    notes = []
    if 0 < found < len(counts):
        notes.append(f"{len(counts) - found} of the network's {len(counts)} classes are missing")
    share = int(n_samples) // found if n_samples is not None and found else 0
    short = sum(0 < count < share for count in counts.values())
    if short:
        notes.append(f"{short} classes have fewer than {share} samples")
    if notes:
        warnings.warn(
            f"the fitting set is uneven: {' and '.join(notes)}. Coverage of those classes will "
            "be low; pass more data, or ignore this warning if that is intended.",
            UserWarning,
            stacklevel=3,
        )
