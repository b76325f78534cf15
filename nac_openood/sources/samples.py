"""Datasets of image files or texts, and a wrapper that reads any dataset in order."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate

from nac_openood.detector.batches import as_batch, bar, check_labels, dataset_labels
from nac_openood.errors import NACError, some
from nac_openood.sources.images import ImageError, rgb_image
from nac_openood.sources.transforms import takes_text, transform_text

#: Batches are cut to a multiple of this many tokens; some networks reject shorter texts.
_MULTIPLE = 8


@dataclass(eq=False)
class Samples(Dataset[Any]):
    """Reads any dataset in order: images, tables, text, signals.

    The dataset may have a method `identity()` that returns a text which changes with the samples.
    Otherwise the samples are read once and hashed. For the pictures in a report it may have
    `picture(index)`, which returns a `PIL.Image`, and a sequence `names`.

    Args:
        name: its name in errors, e.g. "train".
        data: a map-style dataset whose items are `(x, y)`, dicts `{'data', 'label'}` or single
            tensors, or a `DataLoader`, of which the dataset, the sampler's selection and
            `collate_fn` are used. Samples are read in order, without repetition.
        batch_size: samples per batch of `loader()`.
        workers: number of processes that load samples.
        progress: whether to show progress bars; None shows them on a terminal.

    Raises:
        NACError: the data cannot be indexed, or is empty.
    """

    name: str
    data: Any
    batch_size: int = 100
    workers: int = 0
    progress: Optional[bool] = None

    def __post_init__(self) -> None:
        self.dataset, self.collate = _in_order(self.name, self.data)
        origin = getattr(base_dataset(self.data), "origin", None)
        #: The name, and the file or folder that the data is from, for errors.
        self.title = self.name if origin is None else f"{self.name} ({origin})"
        if not len(self.dataset):
            raise NACError(f"{self.title}: the dataset is empty.")

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def loader(self) -> DataLoader[Any]:
        """Batches of all samples, in order."""
        return DataLoader(self, self.batch_size, num_workers=self.workers, collate_fn=self.collate)

    @cached_property
    def labels(self) -> Optional[np.ndarray]:
        """All labels, int64 `[samples]`; None if the samples have none."""
        found = dataset_labels(self.dataset)
        if found is not None and len(found) == len(self):
            # a dataset with a target transform yields other labels than it lists
            ends = sorted({0, len(self) - 1})
            loader = DataLoader(Subset(self, ends), batch_size=1, collate_fn=self.collate)
            yielded = [as_batch(item).labels().tolist() for item in loader]
            if yielded == [[found[i]] for i in ends]:
                return found
        return self._scan[0]

    def check_labels(self, n_classes: int) -> None:
        """Check that every sample of in-distribution data has the label of a class."""
        if self.labels is None:
            raise NACError(f"{self.title} has no labels: let the dataset yield (x, y).")
        check_labels(torch.from_numpy(self.labels), n_classes, f"{self.title}: ")

    @cached_property
    def identity(self) -> str:
        """A text that is equal only for equal samples; results are reused by it."""
        return _identity(self.dataset) or self._scan[1]

    def sample_name(self, index: int) -> str:
        """The name of a sample: the dataset's own, or its number."""
        return str(getattr(self.dataset, "names", range(len(self)))[index])

    def picture(self, index: int) -> Optional[Any]:
        """A `PIL.Image` of a sample, or None if the dataset has no pictures."""
        draw = getattr(self.dataset, "picture", None)
        return draw(index) if callable(draw) else None

    @cached_property
    def _scan(self) -> tuple[Optional[np.ndarray], str]:
        """Labels and hash of all samples, by one pass over them."""
        digest = hashlib.sha256()
        labels: list[Any] = []
        for item in bar(self.loader(), f"check {self.name}", self.progress):
            _hash(digest, item)
            labels.append(as_batch(item).label)
        if any(label is None for label in labels):
            return None, digest.hexdigest()[:16]
        return torch.cat([label.cpu() for label in labels]).numpy(), digest.hexdigest()[:16]


def base_dataset(data: Any) -> Any:
    """Unwrap loaders and subsets."""
    while isinstance(data, (Subset, DataLoader)):
        data = data.dataset
    return data


def _in_order(name: str, data: Any) -> tuple[Any, Any]:
    """Return a dataset and its `collate_fn`, without a loader's shuffling and dropping."""
    is_text = takes_text(getattr(base_dataset(data), "transform", None))
    collate: Any = collate_texts if is_text else None
    if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset):
        if data.batch_size is None:
            raise NACError(f"{name}: a batch_sampler cannot be read in order. Pass its dataset.")
        with torch.random.fork_rng(devices=[]):
            rows, collate, data = sorted(set(data.sampler)), data.collate_fn, data.dataset
        data = data if len(rows) == len(data) else Subset(data, rows)
    # an `IterableDataset` has a __getitem__ too, which raises an error
    is_stream = isinstance(data, (DataLoader, IterableDataset)) or not hasattr(data, "__getitem__")
    if is_stream or not hasattr(data, "__len__"):
        found = type(data).__name__
        raise NACError(f"{name}: expected a map-style dataset or a loader of one, got {found}.")
    return data, collate


def _identity(dataset: Any) -> Optional[str]:
    """What `identity()` of the dataset returns, or that of a subset's dataset and the indices."""
    if isinstance(dataset, Subset):
        inner, rows = _identity(dataset.dataset), np.asarray(dataset.indices, dtype=np.int64)
        return inner and hashlib.sha256(inner.encode() + rows.tobytes()).hexdigest()[:16]
    identity = getattr(dataset, "identity", None)
    return str(identity()) if callable(identity) else None


def _hash(digest: Any, item: Any) -> None:
    """Feed what a loader yields to a hash."""
    if isinstance(item, Tensor):
        item = item.detach().cpu()
        item = item.view(torch.int16).numpy() if item.dtype == torch.bfloat16 else item.numpy()
    if isinstance(item, (np.ndarray, np.generic)) and item.dtype != object:
        digest.update(f"{item.dtype}{item.shape}".encode() + np.ascontiguousarray(item).tobytes())
    elif isinstance(item, Mapping):
        for part in (part for pair in item.items() for part in pair):
            _hash(digest, part)
    elif isinstance(item, (str, bytes, int, float, type(None))):
        digest.update(f"{type(item).__name__}{item!r}".encode())
    elif isinstance(item, Sequence):
        digest.update(f"{len(item)}".encode())
        for part in item:
            _hash(digest, part)
    else:  # it cannot be compared, so its hash must never match
        digest.update(os.urandom(16))


@dataclass(eq=False)
class SampleList(Dataset[Any]):
    """Image files or texts with labels, as readers find them.

    Images become OpenOOD's `{'data', 'label'}` dicts, texts dicts of a network's inputs, with
    `label`.

    Args:
        items: paths relative to `root`, or texts.
        labels: a label per sample, or -1 if they have none; made an int64 array.
        transform: turns an RGB image, or a text, into tensors; see `takes_text`.
        origin: where the samples come from, for errors.
        classes: names of the classes in the order of their labels, where they are known.
        root: folder of the images; None for texts.
    """

    items: list[str]
    labels: Any
    transform: Any
    origin: str
    classes: tuple[str, ...] = ()
    root: Optional[Path] = None

    def __post_init__(self) -> None:
        self.labels = np.full(len(self.items), self.labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        label = int(self.labels[index])
        if self.root is None:
            return {**self.transform(self.items[index]), "label": label}
        return {"data": self.transform(self.picture(index)), "label": label}

    @property
    def names(self) -> list[str]:
        """The relative paths of images, or the beginnings of texts."""
        return self.items if self.root is not None else [text[:60] for text in self.items]

    @property
    def paths(self) -> list[Path]:
        """The paths of images; empty for texts."""
        return [] if self.root is None else [self.root / item for item in self.items]

    def picture(self, index: int) -> Optional[Image.Image]:
        """The image in RGB; None for a text."""
        if self.root is None:
            return None
        path = self.root / self.items[index]
        try:
            return rgb_image(path)
        except ImageError as error:
            raise NACError(
                f"the image {path} cannot be read ({error}). Replace it, or take it out of "
                f"{self.origin}; if all are missing, check `data_root`."
            ) from error

    def without(self, indices: Sequence[int]) -> SampleList:
        """The same samples without some of them."""
        rows = np.setdiff1d(np.arange(len(self)), indices)
        return replace(self, items=[self.items[i] for i in rows], labels=self.labels[rows])

    def identity(self) -> str:
        """A hash of the labels, the transform and the texts or the files.

        Files count by name, size and modification time. It is computed once, since a million files
        take a while.
        """
        return self._identity

    @cached_property
    def _identity(self) -> str:
        digest = hashlib.sha256(transform_text(self.transform).encode())
        for item, label in zip(self.items, self.labels):
            line = f"{label}\0{len(item)}\0{item}"
            if self.root is not None:
                line = f"{item}\0{label}\0{_stamp(self.root / item)}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:16]


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "missing"
    return f"{status.st_size} {status.st_mtime_ns}"


def common_files(one: Any, other: Any) -> int:
    """Count the files that two sets of images share; 0 if either is not a `SampleList`."""
    # realpath, because resolve fails at a link to itself
    lists = [data.paths if isinstance(data, SampleList) else [] for data in (one, other)]
    return len(set.intersection(*({*map(os.path.realpath, paths)} for paths in lists)))


def readable_images(
    images: SampleList, name: str, *, workers: int = 0, progress: Optional[bool] = None
) -> tuple[SampleList, str]:
    """Decode every image once.

    Returns:
        The images that can be read, and a sentence about the others; "" if there are none.
    """
    paths: Any = images.paths
    loader = DataLoader(paths, batch_size=None, num_workers=workers, collate_fn=problem_of)
    found = enumerate(bar(loader, f"check {name}", progress))
    bad = {row: f"{paths[row]} ({why})" for row, why in found if why}
    if not bad:
        return images, ""
    problem = f"{len(bad)} of {len(images)} images are missing or unreadable"
    return images.without(list(bad)), f"{problem}: {some(list(bad.values()))}"


def problem_of(path: Any) -> str:
    """Why an image cannot be read; empty if it can."""
    try:
        rgb_image(path)
    except ImageError as error:
        return str(error)
    return ""


def collate_texts(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Collate texts into a batch about as long as its longest text; see `without_padding`."""
    return without_padding(default_collate(list(samples)))


def without_padding(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Cut off the tokens at the end of a batch that are padding in every text.

    A batch without an `attention_mask` is left unchanged, and so is padding in front of a text,
    which changes the positions of its tokens.

    Args:
        batch: `[texts, tokens]` by name; tensors of another length are left unchanged.
    """
    mask = batch.get("attention_mask")
    if mask is None:
        return dict(batch)
    n_tokens, used = mask.shape[1], mask.any(dim=0).nonzero()
    kept = -(-max(len(used) and int(used[-1]) + 1, 1) // _MULTIPLE) * _MULTIPLE
    return {
        name: part[:, :kept] if part.ndim > 1 and part.shape[1] == n_tokens else part
        for name, part in batch.items()
    }
