"""One pass over a benchmark: the readings that a search needs."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Optional, Union

import numpy as np
import torch
from torch.utils.data import DataLoader, Subset

from nac_openood.bench.images import Transform
from nac_openood.bench.imglist import Benchmark, ListedImages
from nac_openood.bench.sets import NO_OOD
from nac_openood.core.readings import Readings
from nac_openood.data import AUTHORS_SEED, balanced_indices, dataset_labels
from nac_openood.detector import NACDetector
from nac_openood.errors import NACError
from nac_openood.fitting import check_labels
from nac_openood.search.stored import ReadingSet, prepare_folder, write_manifest
from nac_openood.search.surrogate import SURROGATES, SurrogateLoader


@dataclass(frozen=True)
class Source:
    """Where images come from and how they are loaded.

    Args:
        benchmark: which.
        data_root: OpenOOD's data folder.
        transform: of the images; None takes the benchmark's.
        batch_size: of images.
        workers: processes that load them.
    """

    benchmark: Benchmark
    data_root: Union[str, Path]
    transform: Optional[Transform] = None
    batch_size: int = 100
    workers: int = 0

    def images(self, part: str) -> ListedImages:
        """The images of a list."""
        transform = self.transform or self.benchmark.transform()
        return self.benchmark.images(self.data_root, part, transform)

    def loader(self, images: Any) -> DataLoader[Any]:
        """Batches of them, in order."""
        return DataLoader(images, batch_size=self.batch_size, num_workers=self.workers)


def split_training(
    labels: np.ndarray, n_samples: Optional[int], held_out: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows to fit on, as the authors draw them, and other rows for the guard, drawn alike.

    Args:
        labels: int64 `[samples]`.
        n_samples: how many to fit on; None takes all, and leaves none for the guard.
        held_out: how many others to take at most.
    """
    if n_samples is None or n_samples >= len(labels):
        return np.arange(len(labels)), np.arange(0)
    fit = balanced_indices(labels, n_samples, AUTHORS_SEED)
    rest = np.setdiff1d(np.arange(len(labels)), fit)
    if held_out >= len(rest) or not held_out:
        return fit, rest[:held_out]
    if held_out >= len(np.unique(labels[rest])):
        return fit, rest[balanced_indices(labels[rest], held_out, AUTHORS_SEED)]
    return fit, np.random.RandomState(AUTHORS_SEED).permutation(rest)[:held_out]


def collect(
    detector: NACDetector,
    source: Source,
    *,
    n_samples: Optional[int] = 1000,
    held_out: int = 1000,
    ood_val: Optional[str] = None,
    folder: Union[str, Path, None] = None,
    seed: int = 0,
    about: Optional[dict[str, Any]] = None,
    say: Callable[[str], None] = lambda text: None,
    progress: Optional[bool] = None,
) -> ReadingSet:
    """Read the fitting subset, both validation sets and held-out training samples.

    Args:
        detector: reads; it need not be fitted.
        source: of the images.
        n_samples: size of the fitting subset; None takes all training images.
        held_out: how many other training images to read for the guard.
        ood_val: the list of OOD validation images without `val_`; None takes the benchmark's,
            "none" makes surrogates of the ID validation images.
        folder: where to write the readings, batch by batch; None keeps them in memory.
        seed: of the surrogates.
        about: what else to note beside the readings.
        say: is told what is going on.
        progress: a progress bar; None shows one on a terminal.
    """
    name = source.benchmark.name
    against = ood_val or source.benchmark.ood_val
    loaders = _loaders(source, n_samples, held_out, against, seed)
    if against == NO_OOD:
        told = f"surrogates of val_{name} ({', '.join(SURROGATES)})"
    else:
        told = f"val_{against}"
    target = None if folder is None else prepare_folder(folder)
    found: dict[str, Readings] = {}
    for role, loader in loaders.items():
        say(f"reading {_WHAT[role]}" + (f": {told}" if role == "ood_val" else ""))
        file = None if target is None else target / f"{role}.safetensors"
        with plain_worker_errors():
            found[role] = detector.read_loader(loader, save_to=file, progress=progress)
    notes = {
        **(about or {}),
        "id_data": name,
        "ood_val": {"name": told, "surrogate": against == NO_OOD},
        "samples": {role: readings.n_samples for role, readings in found.items()},
        "accuracy": _accuracy(found["id_val"]),
    }
    if target is not None:
        write_manifest(target, list(found), notes)
    return ReadingSet(**found, about=notes)


def _loaders(
    source: Source, n_samples: Optional[int], held_out: int, against: str, seed: int
) -> dict[str, Iterable[Any]]:
    """A loader for each role; a list that is missing is noticed before anything is read."""
    name = source.benchmark.name
    train, inside = source.images(f"train_{name}"), source.images(f"val_{name}")
    fit, held = split_training(_labels(train, source.benchmark), n_samples, held_out)
    loaders: dict[str, Iterable[Any]] = {
        "fit": source.loader(Subset(train, fit.tolist())),
        "id_val": source.loader(inside),
    }
    if against == NO_OOD:
        loaders["ood_val"] = SurrogateLoader(loaders["id_val"], seed=seed)
    else:
        loaders["ood_val"] = source.loader(source.images(f"val_{against}"))
    if len(held):
        loaders["held_out"] = source.loader(Subset(train, held.tolist()))
    return loaders


@contextmanager
def plain_worker_errors() -> Iterator[None]:
    """Errors of loading processes without the traceback that PyTorch makes part of them."""
    try:
        yield
    except NACError as error:
        text = str(error)
        if not text.startswith("Caught NACError in DataLoader worker"):
            raise
        raise NACError(text.rpartition("NACError: ")[2].strip()) from error


_WHAT = {
    "fit": "the fitting subset",
    "id_val": "ID validation",
    "ood_val": "OOD validation",
    "held_out": "held-out training samples",
}


def _labels(images: ListedImages, benchmark: Benchmark) -> np.ndarray:
    labels = dataset_labels(images)
    if labels is None:
        raise NACError(f"{images.origin}: expected whole-number labels.")
    check_labels(torch.from_numpy(labels), benchmark.n_classes)
    return labels


def _accuracy(readings: Readings) -> float:
    """Of the network on ID validation: a wrong transform or checkpoint shows here first."""
    return float((readings.prediction == readings.label).double().mean())
