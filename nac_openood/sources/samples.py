"""Any dataset as a comparison reads it: in order, with labels and an identity."""

from __future__ import annotations

import hashlib
import uuid
from functools import cached_property
from typing import Any, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from nac_openood.detector.batches import as_batch, check_labels
from nac_openood.detector.subset import dataset_labels
from nac_openood.errors import NACError
from nac_openood.progress import bar
from nac_openood.sources.texts import collate_for


class Samples(Dataset[Any]):
    """A dataset in order, whatever it holds: images, tables, text, signals.

    The dataset may have a method `identity()` that returns a text which changes with the samples.
    Otherwise the samples are read once and hashed. For the pictures in a report it may have
    `picture(index)`, which returns a `PIL.Image`, and a sequence `names`.

    Args:
        name: its name in errors, e.g. "train".
        data: a map-style dataset whose items are `(x, y)`, dicts `{'data', 'label'}` or plain
            tensors, or a `DataLoader`, of which the dataset, the sampler's selection and
            `collate_fn` are used. Samples are read in order, without repetition.
        batch_size: of the loaders made here.
        workers: number of processes that load samples.
        progress: whether to show progress bars; None shows them on a terminal.

    Raises:
        NACError: the data cannot be indexed, or is empty.
    """

    def __init__(
        self,
        name: str,
        data: Any,
        *,
        batch_size: int = 100,
        workers: int = 0,
        progress: Optional[bool] = None,
    ) -> None:
        self.name, self.progress = name, progress
        self.batch_size, self.workers = batch_size, workers
        self.dataset, self.collate = _in_order(name, data)
        if not len(self.dataset):
            raise NACError(f"{self.title}: the dataset is empty.")

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    @property
    def title(self) -> str:
        """The name, and the file or folder behind it, for errors."""
        origin = getattr(self.dataset, "origin", None)
        return self.name if origin is None else f"{self.name} ({origin})"

    def loader(self) -> DataLoader[Any]:
        """Batches of all samples, in order."""
        return DataLoader(self, self.batch_size, num_workers=self.workers, collate_fn=self.collate)

    @cached_property
    def labels(self) -> Optional[np.ndarray]:
        """All labels, int64 `[samples]`; None if the samples have none."""
        told = dataset_labels(self.dataset)
        if told is not None and len(told) == len(self):
            # what a dataset tells need not be what it yields: there are target transforms
            ends = sorted({0, len(self) - 1})
            yielded = [
                _labels(DataLoader(Subset(self, [i]), collate_fn=self.collate)) for i in ends
            ]
            if [None if y is None else y.tolist() for y in yielded] == [[told[i]] for i in ends]:
                return told
        return self._scan.labels

    def check_labels(self, n_classes: int) -> None:
        """Refuse in-distribution data without labels, or with labels that are no class.

        Raises:
            NACError: naming the dataset and the label.
        """
        if self.labels is None:
            raise NACError(
                f"{self.title}: expected a label for every sample, got none. Let the dataset yield "
                "(x, y) or {'data': x, 'label': y}."
            )
        try:
            check_labels(torch.from_numpy(self.labels), n_classes)
        except NACError as error:
            raise NACError(f"{self.title}: {error}") from error

    @cached_property
    def identity(self) -> str:
        """A text that is equal for equal samples only; results are reused if it is."""
        own = getattr(self.dataset, "identity", None)
        return str(own()) if callable(own) else self._scan.digest

    def sample_name(self, index: int) -> str:
        """The name of a sample: the dataset's own, or its number."""
        names = getattr(self.dataset, "names", None)
        return str(index) if names is None else str(names[index])

    def picture(self, index: int) -> Optional[Any]:
        """A `PIL.Image` of a sample, or None if the dataset has no pictures."""
        draw = getattr(self.dataset, "picture", None)
        return draw(index) if callable(draw) else None

    @cached_property
    def _scan(self) -> _Scan:
        """One pass over the samples, for what the dataset itself does not tell."""
        digest, labels = hashlib.sha256(), []
        hashable = True
        for item in bar(self.loader(), f"check {self.name}", self.progress):
            hashable = hashable and _hash(digest, item)
            label = as_batch(item).label
            labels.append(None if label is None else label.cpu().numpy())
        known = [label for label in labels if label is not None]
        return _Scan(
            np.concatenate(known) if len(known) == len(labels) else None,
            # what cannot be compared is never the same
            digest.hexdigest()[:16] if hashable else uuid.uuid4().hex,
        )


class Rows(Subset[Any]):
    """Some samples of a dataset, in their order, with an identity of their own.

    Args:
        dataset: a map-style dataset.
        rows: int64 `[n]`, which samples.
    """

    def __init__(self, dataset: Any, rows: np.ndarray) -> None:
        super().__init__(dataset, np.sort(rows).tolist())
        if hasattr(dataset, "origin"):
            self.origin = dataset.origin
        if hasattr(dataset, "identity"):  # otherwise `Samples` hashes the samples themselves
            self.identity = self._identity

    def _identity(self) -> str:
        digest = hashlib.sha256(str(self.dataset.identity()).encode())  # type: ignore[attr-defined]
        digest.update(np.asarray(self.indices, dtype=np.int64).tobytes())
        return digest.hexdigest()[:16]


class _Scan(NamedTuple):
    labels: Optional[np.ndarray]
    digest: str


def _labels(loader: DataLoader[Any]) -> Optional[np.ndarray]:
    label = as_batch(next(iter(loader))).label
    return None if label is None else label.cpu().numpy()


def _in_order(name: str, data: Any) -> tuple[Any, Any]:
    """A dataset and its `collate_fn`; a loader's shuffling and dropping is undone."""
    collate: Any = collate_for(data)
    if isinstance(data, DataLoader) and _is_indexed(data.dataset):
        if data.batch_size is None:
            raise NACError(
                f"{name}: cannot read a DataLoader with a batch_sampler in order. Pass its dataset."
            )
        data, collate = _selected(data), data.collate_fn
    if not _is_indexed(data):
        raise NACError(
            f"{name}: expected a map-style dataset (with __len__ and __getitem__) or a DataLoader "
            f"of one, got {type(data).__name__}. Read a stream into a list of samples first."
        )
    return data, collate


def _is_indexed(data: Any) -> bool:
    # every `Dataset` has a __getitem__, also a stream, which raises an error there
    indexed = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    return indexed and not isinstance(data, IterableDataset)


def _selected(loader: DataLoader[Any]) -> Any:
    """The samples that a loader yields in an epoch, in the order of its dataset."""
    sampler: Any = loader.sampler
    whole = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler)
        and not sampler.replacement
        and len(sampler) == len(loader.dataset)  # type: ignore[arg-type]
    )
    if whole:
        return loader.dataset
    with torch.random.fork_rng(devices=[]):
        return Subset(loader.dataset, sorted(set(sampler)))


def _hash(digest: Any, item: Any) -> bool:
    """Feed whatever a loader yields to a hash; False if it holds something unknown."""
    if isinstance(item, Mapping):
        return all(_hash(digest, part) for pair in item.items() for part in pair)
    if isinstance(item, Tensor):
        item = item.detach().cpu()
        item = item.view(torch.int16).numpy() if item.dtype == torch.bfloat16 else item.numpy()
    if isinstance(item, (np.ndarray, np.generic)) and item.dtype != object:
        digest.update(f"{item.dtype}{item.shape}".encode() + np.ascontiguousarray(item).tobytes())
        return True
    if isinstance(item, (str, bytes, int, float, type(None))):
        digest.update(f"{type(item).__name__}{item!r}".encode())
        return True
    if isinstance(item, Sequence):
        digest.update(f"{len(item)}".encode())
        return all(_hash(digest, part) for part in item)
    return False
