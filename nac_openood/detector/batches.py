"""Batches of any loader: which of them a process works on, and which samples to fit on."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, count
from operator import length_hint
from typing import Any, NamedTuple, Optional, TypeVar, Union

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import data as torch_data
from torch.utils.data import DataLoader, IterableDataset

from nac_openood.core.layer_config import whole_number
from nac_openood.distributed import from_main, is_main, map_shared, world
from nac_openood.errors import NACError
from nac_openood.network.inputs import LABELS, as_inputs, describe_value, rows, sample_count
from nac_openood.network.probe import count_classes

with warnings.catch_warnings():
    # in a notebook without ipywidgets tqdm warns, and then draws its bars as text, which is fine
    warnings.filterwarnings("ignore", "IProgress not found")
    from tqdm.auto import tqdm

_R = TypeVar("_R")
#: A function that shows a line about the progress, e.g. `print`.
Say = Callable[[str], None]
#: The seed with which the authors shuffle each class before taking its first samples.
AUTHORS_SEED = 1
#: For loaders without a fixed batch size.
_BATCH_SIZE = 32
#: Options that `loader_like` takes over from another loader.
_SAME_OPTIONS = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn",
    "multiprocessing_context", "prefetch_factor",
)  # fmt: skip

#: How many samples to fit on: a number, None for all of them, or `DEFAULT_SIZE`.
SampleCount = Union[int, str, None]
#: As many samples as the paper's settings assume, or so many of each class if that is more. NAC+ is
#: as good as with more of them; see docs/method.md.
DEFAULT_SIZE = "auto"
_SAMPLES, _PER_CLASS = 1000, 20


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


def batches(
    loader: Iterable[Any], title: str = "", progress: Optional[bool] = False
) -> Iterator[Batch]:
    """Iterate over the batches of a loader; see `as_batch` for its items.

    Args:
        loader: yields batches.
        title: title of the progress bar.
        progress: whether to show the bar; None shows it on a terminal.

    Raises:
        NACError: this is not a loader, but a dataset or a batch.
    """
    is_dataset = isinstance(loader, torch_data.Dataset) and not isinstance(loader, IterableDataset)
    is_batch = isinstance(loader, (Tensor, np.ndarray, str, bytes, Mapping))
    if isinstance(loader, (tuple, list)) and len(loader) == 2:  # samples and their labels
        first, second = (part.ndim if isinstance(part, Tensor) else 0 for part in loader)
        is_batch |= first > 1 == second
    if is_dataset or is_batch or not hasattr(loader, "__iter__"):
        raise NACError(
            f"expected a loader that yields batches, got {type(loader).__name__}. Pass a list of "
            "batches, [(x, y)], or torch.utils.data.DataLoader(dataset, batch_size=100)."
        )
    try:
        for item in bar(loader, title, progress):
            yield as_batch(item)
    except NACError as error:
        # PyTorch adds a traceback to the message of an error in a worker process of the loader
        text = str(error)
        if text.startswith("Caught NACError in DataLoader worker"):
            raise NACError(text.rpartition("NACError: ")[2].strip()) from error
        raise


def bar(items: Iterable[Any], title: str, progress: Optional[bool]) -> Iterator[Any]:
    """Show a progress bar while iterating; `progress=None` shows it on a terminal only.

    Where several processes work together, only the first one shows the bar.
    """
    hidden = True if not is_main() else None if progress is None else not progress
    total = length_hint(items) or None
    # given a loader itself, tqdm would iterate over it twice, and start its workers twice
    with tqdm(total=total, desc=title, unit="batch", leave=False, disable=hidden) as shown:
        for item in items:
            yield item
            shown.update()


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
        whole = tensor.numel() == n and bool((tensor == tensor.long()).all())
    except (TypeError, ValueError, RuntimeError):  # e.g. texts, or rows of different lengths
        found, whole = describe_value(label), False
    if not whole:
        raise NACError(
            f"expected one whole-number label for each of {n} samples, got {found}. Without usable "
            "labels, let the loader yield tensors only. A network with several inputs needs them "
            "in a tuple, ((x1, x2), y), or in a dict."
        )
    return tensor.reshape(n).to(torch.int64)


def check_labels(labels: Optional[Tensor], n_classes: int, what: str = "") -> None:
    """Refuse labels that are not classes of the network; `what` begins the message."""
    if labels is None or not labels.numel():
        return
    least, most = int(labels.min()), int(labels.max())
    if least < 0 or most >= n_classes:
        raise NACError(
            f"{what}labels must be in 0..{n_classes - 1}, the network's classes; found "
            f"{least if least < 0 else most}. Is this the dataset that the network was trained on? "
            "(-1 marks out-of-distribution samples in OpenOOD.)"
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
    for number, batch in zip(numbers, batches(loader, title, progress)):
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
    in_order = isinstance(getattr(sampler, "sampler", None), torch_data.SequentialSampler)
    if isinstance(sampler, list) or (type(sampler) is torch_data.BatchSampler and in_order):
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
    options = {name: getattr(loader, name) for name in _SAME_OPTIONS}
    if indices is not None:
        options["batch_sampler"] = indices
    else:
        size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
        options["batch_size"] = size or _BATCH_SIZE
    return DataLoader(loader.dataset if dataset is None else dataset, **options)


# -- samples to fit on ---------------------------------------------------------------------


def dataset_labels(dataset: Any) -> Optional[np.ndarray]:
    """All labels of a dataset without loading its samples, or None where that is not possible.

    Supports `Subset`, `ConcatDataset`, `TensorDataset`, OpenOOD's `.imglist` lines ("path label")
    and torchvision's `.targets`, `.labels` and `.samples`.
    """
    if isinstance(dataset, torch_data.Subset):
        inner = dataset_labels(dataset.dataset)
        return None if inner is None else inner[np.asarray(dataset.indices, dtype=int)]
    if isinstance(dataset, torch_data.ConcatDataset):
        parts = [dataset_labels(part) for part in dataset.datasets]
        return None if any(p is None for p in parts) else np.concatenate([*parts])
    if isinstance(dataset, torch_data.TensorDataset):
        values: Any = dataset.tensors[1] if len(dataset.tensors) > 1 else None
    elif hasattr(dataset, "imglist"):
        values = [line.strip().split(" ", 1)[1] for line in dataset.imglist]
    else:
        values = getattr(dataset, "targets", getattr(dataset, "labels", None))
        if values is None and hasattr(dataset, "samples"):
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
    loader: Iterable[Any], n_samples: SampleCount, seed: int = AUTHORS_SEED
) -> Iterable[Any]:
    """A loader over the fitting subset, if the dataset of `loader` can be indexed.

    Any other loader (a list of batches, a stream) is returned as it is; see `take_quota`.
    """
    if n_samples is None or not indexable(loader):
        return loader
    dataset: Any = loader.dataset  # type: ignore[attr-defined]
    chosen = getattr(loader.sampler, "indices", None)  # type: ignore[attr-defined]
    if chosen is not None:  # of a SubsetRandomSampler, which leaves out e.g. validation data
        dataset = torch_data.Subset(dataset, list(chosen))
    labels = dataset_labels(dataset)
    if isinstance(n_samples, str):
        n_classes = 1 if labels is None else len(np.unique(labels))
        n_samples = max(_SAMPLES, _PER_CLASS * n_classes)
        if n_samples >= len(dataset):
            return loader
    indices = fitting_indices(labels, len(dataset), n_samples, seed)
    return loader_like(loader, torch_data.Subset(dataset, indices.tolist()))


def fitting_batches(
    net: nn.Module,
    loader: Iterable[Any],
    n_samples: SampleCount,
    title: str,
    progress: Optional[bool],
    seed: int = AUTHORS_SEED,
) -> Iterator[Batch]:
    """Iterate over the samples to fit on, in batches as of `load_batches`.

    Args:
        net: the network; labels must be among its classes.
        loader: batches, as in `NACDetector.fit`.
        n_samples: as in `NACDetector.fit`.
        title: title of the progress bar.
        progress: whether to show it; None shows it on a terminal.
        seed: random seed of the draw.
    """
    if n_samples is not None and n_samples != DEFAULT_SIZE:
        n_samples = whole_number("n_samples", n_samples, 1)
    subset = fitting_loader(loader, n_samples, seed)
    found = load_batches(subset, title, progress)
    first = next(found, None)
    if first is None:
        raise NACError("the loader yielded no samples: there is nothing to fit on.")
    n_classes = count_classes(net, first.data)
    found = chain([first], found)
    if isinstance(n_samples, int) and subset is loader:
        found = take_quota(found, n_samples, n_classes)
    for batch in found:
        check_labels(batch.label, n_classes)
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


def warn_if_uneven(counts: Mapping[int, int], n_classes: int, n_samples: SampleCount) -> None:
    """Warn if classes are missing, or have fewer samples than their share of a number."""
    notes = []
    if 0 < len(counts) < n_classes:
        notes.append(f"{n_classes - len(counts)} of the network's {n_classes} classes are missing")
    share = (n_samples if isinstance(n_samples, int) else 0) // max(len(counts), 1)
    short = sum(count < share for count in counts.values())
    if short:
        notes.append(f"{short} classes have fewer than {share} samples")
    if notes:
        warnings.warn(
            f"the fitting set is uneven: {' and '.join(notes)}. Coverage of those classes will "
            "be low; pass more data, or ignore this warning if that is intended.",
            stacklevel=3,
        )
