"""Readers of labelled data: class folders, CSV lists, OpenOOD's lists, DomainBed's domains."""

from __future__ import annotations

import csv
import hashlib
import re
from pathlib import Path
from typing import Any, Iterable, Optional, Sequence

import numpy as np
from torch.utils.data import Subset

from nac_openood.errors import NACError, some, why_unreadable
from nac_openood.files import PathLike, entries, read_text
from nac_openood.sources.images import Transform, sample_names
from nac_openood.sources.samples import SampleList
from nac_openood.sources.transforms import square_settings, takes_text

#: Larger labels are mistyped; without a limit, each would make a list of that many names.
_MOST_CLASSES = 10**6
_HELD_OUT = 0.2


def labelled_samples(
    path: PathLike,
    transform: Any,
    classes: Optional[Sequence[str]] = None,
    network_classes: Sequence[str] = (),
) -> SampleList:
    """Read samples with their labels and the names of their classes.

    Args:
        path: a folder with a subfolder for each class, or a CSV file with the columns `path` and
            `label`, or `text` and `label`. Its paths are relative to its own folder. Its labels are
            names of classes, or the numbers of classes if all of them are whole numbers.
        transform: turns an RGB image, or a text, into tensors.
        classes: names of the classes in the order of their labels; None takes those that occur,
            in alphabetical order, as torchvision's `ImageFolder` does.
        network_classes: taken instead where `classes` is None, if the data has such names only or
            numbers.

    Raises:
        NACError: there are no samples, or a label is not in `classes`.
    """
    data, labels = _read(Path(path), transform, labelled=True)
    found = sorted(set(labels))
    are_numbers = _is_csv(path) and all(re.fullmatch("-?[0-9]{1,18}", label) for label in found)
    if classes is None and (are_numbers or set(found) <= set(network_classes)):
        classes = tuple(network_classes) or None
    if are_numbers and not set(found) <= set(classes or ()):
        count = min(max(map(int, found)) + 1, _MOST_CLASSES)
        names = classes or list(map(str, range(count)))
        index = {label: int(label) for label in found if 0 <= int(label) < len(names)}
    else:
        names = classes or found
        index = {name: number for number, name in enumerate(names)}
    unknown = [label for label in found if label not in index]
    if unknown:
        counted = f", numbered 0 to {len(names) - 1}" if are_numbers else ""
        raise NACError(
            f"{path} has samples of class {some(unknown)}, not among the {len(names)} known "
            f"classes: {some(names)}{counted}. Remove them, or rename the class."
        )
    if len(names) < 2:
        raise NACError(f"{data.origin} has one class only, {names[0]}: expected at least two.")
    numbers = [index[label] for label in labels]
    data.labels, data.classes = np.array(numbers, dtype=np.int64), tuple(names)
    return data


def unlabelled_samples(path: PathLike, transform: Any) -> SampleList:
    """Read the images of a folder and its subfolders, or a CSV file with a column path or text."""
    return _read(Path(path), transform, labelled=False)[0]


def listed_images(list_file: Path, root: Path, transform: Transform) -> SampleList:
    """Read a list of images in OpenOOD's format, with lines `path label`.

    Args:
        list_file: the list.
        root: folder that the paths are relative to.
        transform: turns an RGB image into a tensor.
    """
    if not list_file.is_file():
        others = ", ".join(sorted(path.stem for path in list_file.parent.glob("*.txt")))
        raise NACError(
            f"there is no list {list_file}, only: {others or 'nothing'}. Expected OpenOOD's layout "
            "in `data_root`; for a folder of images write NAME=FOLDER."
        )
    names, labels = [], []
    lines = read_text(list_file, f"the list {list_file}").splitlines()
    for number, line in enumerate(map(str.strip, lines), start=1):
        name, _, label = line.partition(" ")
        if line and not re.fullmatch("-?[0-9]{1,9}", label):
            raise NACError(f"{list_file}, line {number}: expected 'path label', got {line!r}.")
        if line:
            names.append(name)
            labels.append(int(label))
    if not names:
        raise NACError(f"the list {list_file} is empty.")
    return SampleList(names, labels, transform, str(list_file), root=root)


def _is_csv(path: PathLike) -> bool:
    return Path(path).suffix.lower() == ".csv"


def _read(path: Path, transform: Any, *, labelled: bool) -> tuple[SampleList, list[str]]:
    """Read the samples of a folder or CSV file, and the class of each if `labelled`."""
    if _is_csv(path):
        return _read_csv(path, transform, labelled)
    names, classes = sample_names(path), []
    if labelled:
        folders = [(name.partition("/")[0], name) for name in names if "/" in name]
        found = sorted(pair for pair in folders if not pair[0].startswith("."))
        if not found:
            raise NACError(f"the images of {path} are not in class folders, as {path}/dog/1.jpg.")
        names, classes = [name for _, name in found], [folder for folder, _ in found]
    return SampleList(names, -1, transform, f"the folder {path}", root=path), classes


def _read_csv(path: Path, transform: Any, labelled: bool) -> tuple[SampleList, list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            names = list(reader.fieldnames or ())
            lines = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise NACError(f"the list {path} cannot be read: {why_unreadable(error)}.") from error
    is_text = "text" in names and "path" not in names
    columns = ["text" if is_text else "path", *(["label"] if labelled else [])]
    if not set(columns) <= set(names) or len(set(names)) < len(names):
        got = ", ".join(names) or "nothing"
        raise NACError(f"{path}: expected a first line with {' and '.join(columns)}, got {got}.")
    if is_text and not takes_text(transform):
        raise NACError(f"{path} holds texts, but the network takes images: expected paths.")
    for number, line in lines:
        if None in line or None in line.values():  # too many entries, or too few
            raise NACError(f"{path}, line {number}: expected {len(names)} entries; quote commas.")
        if not all(line[name].strip() for name in columns):
            raise NACError(f"{path}, line {number}: {' or '.join(columns)} is empty.")
    if not lines:
        raise NACError(f"the list {path} is empty.")
    items, *labels = [[line[name].strip() for _, line in lines] for name in columns]
    root = None if is_text else path.parent
    return SampleList(items, -1, transform, str(path), root=root), labels[0] if labels else []


def read_domain(
    path: PathLike, classes: Optional[Sequence[str]] = None, transform: Optional[Transform] = None
) -> SampleList:
    """The images of one domain, sorted by class and path.

    PACS, VLCS, OfficeHome and TerraIncognita come as `root/domain/class/image`, like all datasets
    of DomainBed.

    Args:
        path: folder of the domain, with a subfolder for each class.
        classes: names of the classes in the order of their labels; None takes the subfolders that
            hold images. Pass `domain_classes(...)` so that labels agree between domains.
        transform: turns an RGB image into a tensor; None takes `domainbed_transform()`.

    Raises:
        NACError: if the folder is missing or empty, or its classes are not `classes`.
    """
    data = labelled_samples(path, transform or domainbed_transform(), classes)
    missing = [c for number, c in enumerate(data.classes) if number not in data.labels]
    if missing:
        absent = ", ".join(missing)
        raise NACError(f"the domain {path} has no images of class {absent}, which another has.")
    return data


def domain_folders(root: PathLike) -> dict[str, Path]:
    """The folder of each domain in a dataset such as `PACS`, sorted by name."""
    folders = {p.name: p for p in entries(root) if p.is_dir() and not p.name.startswith(".")}
    if not folders:
        raise NACError(f"{root} has no subfolders: expected one per domain.")
    return folders


def domain_classes(folders: Iterable[PathLike]) -> tuple[str, ...]:
    """The names of all classes that occur in any of the domains, sorted."""
    found = (_read(Path(folder), None, labelled=True)[1] for folder in folders)
    return tuple(sorted(set().union(*found)))


def domainbed_transform(size: int = 224) -> Transform:
    """DomainBed's test transform: resize to `size` x `size`, normalize as for ImageNet."""
    return square_settings(size).transform()


def split_domain(data: Any, trial: int, domain_index: int) -> tuple[Subset[Any], Subset[Any]]:
    """Split a domain as DomainBed does: training samples, and 20 % that are held out.

    Args:
        data: a map-style dataset.
        trial: see `split_seed`.
        domain_index: see `split_seed`.
    """
    parts = split_indices(len(data), split_seed(trial, domain_index))
    train, held_out = (Subset(data, np.sort(rows).tolist()) for rows in parts)
    return train, held_out


def split_indices(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split `n` samples at random: 20 %, rounded down, are held out, as DomainBed does.

    Args:
        n: number of samples.
        seed: e.g. from `split_seed`.

    Returns:
        The training rows and the held-out rows, int64, in random order.
    """
    held_out = int(n * _HELD_OUT)
    if not held_out:
        raise NACError(f"cannot hold out 20 % of {n} samples: add some, or pass validation data.")
    rows = np.arange(n)
    np.random.RandomState(seed).shuffle(rows)
    return rows[held_out:], rows[:held_out]


def split_seed(trial: int, domain_index: int) -> int:
    """DomainBed's seed of a split.

    Args:
        trial: number of the trial, from 0.
        domain_index: number of the domain in sorted order, from 0, the target domain included.
    """
    text = str((int(trial), int(domain_index))).encode()
    return int(hashlib.md5(text, usedforsecurity=False).hexdigest(), 16) % 2**31
