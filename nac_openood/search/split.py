"""Parts of a loader: the training samples that are held out, or a few samples of any set."""

from __future__ import annotations

from typing import Any, Iterable, Optional

import numpy as np
from torch.utils.data import Subset

from nac_openood.detector.batches import Batch, batches, indexable, loader_like
from nac_openood.detector.subset import (
    AUTHORS_SEED,
    balanced_indices,
    dataset_labels,
    fitting_indices,
)


def held_out_of(train: Iterable[Any], n_samples: Optional[int], n: int) -> Optional[Iterable[Any]]:
    """A loader of training samples that `fit` and `read_loader` leave out with `n_samples`.

    Args:
        train: batches of training data.
        n_samples: how many are fitted on.
        n: how many others to take at most, drawn class by class as the fitting subset is.

    Returns:
        None where nothing is left, or where `train` is a stream that cannot be indexed.
    """
    if n_samples is None or not indexable(train):
        return None
    loader: Any = train
    labels, size = dataset_labels(loader.dataset), len(loader.dataset)
    rest = np.setdiff1d(np.arange(size), fitting_indices(labels, size, n_samples))
    rows = _drawn(labels, rest, n)
    return loader_like(loader, Subset(loader.dataset, rows.tolist())) if len(rows) else None


def few_of(loader: Iterable[Any], n: int) -> Iterable[Any]:
    """A loader of at most `n` samples, which can be read more than once.

    They are drawn class by class where that is possible; of a stream they are the first ones, kept
    in memory.
    """
    if indexable(loader):
        source: Any = loader
        labels, size = dataset_labels(source.dataset), len(source.dataset)
        rows = _drawn(labels, np.arange(size), n)
        return loader_like(loader, Subset(source.dataset, rows.tolist()))
    taken: list[Batch] = []
    for batch in batches(loader):
        taken.append(batch.rows(slice(n)))
        n -= taken[-1].size
        if n <= 0:
            break
    return taken


def _drawn(labels: Optional[np.ndarray], rest: np.ndarray, n: int) -> np.ndarray:
    """At most `n` of the rows `rest`, as many of each class where there are enough."""
    if not n or n >= len(rest):
        return rest[:n]
    if labels is not None and n >= len(np.unique(labels[rest])):
        return rest[balanced_indices(labels[rest], n, AUTHORS_SEED)]
    return np.random.RandomState(AUTHORS_SEED).permutation(rest)[:n]
