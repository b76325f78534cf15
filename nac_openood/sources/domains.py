"""Domains as image folders, in DomainBed's layout: `root/domain/class/image`.

PACS, VLCS, OfficeHome and TerraIncognita are laid out like this.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

import numpy as np

from nac_openood.errors import NACError
from nac_openood.files import entries, is_folder
from nac_openood.sources.image_settings import square_settings
from nac_openood.sources.images import FileImages, Transform, image_names
from nac_openood.sources.samples import Rows

_HELD_OUT = 0.2


class DomainFolder(FileImages):
    """The images of one domain, as pairs `(image, label)`, sorted by class and path.

    Args:
        path: folder of the domain, with a subfolder for each class.
        classes: names of the classes in the order of their labels; None takes the subfolders that
            hold images. Pass `domain_classes(...)` so that labels agree between domains.
        transform: turns an RGB image into a tensor; None takes `domainbed_transform()`.

    Attributes:
        classes: names of the classes, in the order of their labels.
        labels: int64 `[images]`.
        names: paths relative to the folder.
        origin: where the images come from, for errors.

    Raises:
        NACError: if the folder is missing or empty, or its classes are not `classes`.
    """

    def __init__(
        self,
        path: Union[str, Path],
        classes: Optional[Sequence[str]] = None,
        transform: Optional[Transform] = None,
    ) -> None:
        found = names_by_class(Path(path))
        known = tuple(found if classes is None else classes)
        _check_classes(Path(path), found, known)
        transform = transform or domainbed_transform()
        images = by_class({one: found[one] for one in known}, known)
        super().__init__(*images, Path(path), transform, f"the folder {path}", known)

    def __getitem__(self, index: int) -> tuple[Any, int]:  # type: ignore[override]
        return self.transform(self.picture(index)), int(self.labels[index])


def domain_folders(root: Union[str, Path]) -> dict[str, Path]:
    """The folder of each domain, sorted by name.

    Args:
        root: e.g. `PACS`, with one subfolder per domain.
    """
    if not is_folder(root):
        raise NACError(f"there is no folder {root}: expected one with a subfolder per domain.")
    folders = {p.name: p for p in entries(root) if is_folder(p) and _is_shown(p.name)}
    if not folders:
        raise NACError(
            f"{root} has no subfolders: expected one per domain, as in {root}/sketch/dog/1.jpg."
        )
    return folders


def domain_classes(folders: Iterable[Union[str, Path]]) -> tuple[str, ...]:
    """The names of all classes that occur in any of the domains, sorted."""
    return tuple(sorted({name for folder in folders for name in names_by_class(Path(folder))}))


def domainbed_transform(size: int = 224) -> Transform:
    """DomainBed's test transform: resize to `size` x `size`, normalize as for ImageNet."""
    return square_settings(size).transform()


def split_domain(data: Any, trial: int, domain_index: int) -> tuple[Rows, Rows]:
    """The training rows of a domain and the 20 % that are held out, as DomainBed splits them.

    Args:
        data: a map-style dataset.
        trial: see `split_seed`.
        domain_index: see `split_seed`.
    """
    kept, held = split_indices(len(data), split_seed(trial, domain_index))
    return Rows(data, kept), Rows(data, held)


def split_indices(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split `n` samples at random: 20 %, rounded down, are held out, as DomainBed does.

    Args:
        n: number of samples.
        seed: e.g. from `split_seed`.

    Returns:
        The training rows and the held-out rows, int64, in random order.
    """
    held = int(n * _HELD_OUT)
    if not held:
        raise NACError(
            f"20 % of {n} samples are to be held out, which is none: expected at least "
            f"{round(1 / _HELD_OUT)} samples. Add some, or pass validation data of your own."
        )
    rows = np.arange(n)
    np.random.RandomState(seed).shuffle(rows)
    return rows[held:], rows[:held]


def split_seed(trial: int, domain_index: int) -> int:
    """DomainBed's seed of a split.

    Args:
        trial: number of the trial, from 0.
        domain_index: number of the domain in sorted order, from 0, the target domain included.
    """
    text = str((int(trial), int(domain_index))).encode()
    return int(hashlib.md5(text, usedforsecurity=False).hexdigest(), 16) % 2**31


def names_by_class(path: Path) -> dict[str, list[str]]:
    """The sorted names of the images in a folder by the subfolder of their class, in its order."""
    found: dict[str, list[str]] = {}
    for name in image_names(path):
        folder, slash, _ = name.partition("/")
        if slash and _is_shown(folder):
            found.setdefault(folder, []).append(name)
    if not found:
        raise NACError(
            f"the images of {path} are in no class folder: expected one subfolder per class, as in "
            f"{path}/dog/1.jpg."
        )
    return dict(sorted(found.items()))


def by_class(
    found: Mapping[str, Sequence[str]], classes: Sequence[str]
) -> tuple[list[str], np.ndarray]:
    """The names and their labels, int64, in the order of `found`.

    Args:
        found: names by class, e.g. from `names_by_class`.
        classes: names of the classes in the order of their labels.
    """
    labels = [classes.index(one) for one in found]
    names = [name for some in found.values() for name in some]
    return names, np.repeat(labels, [len(some) for some in found.values()])


def _check_classes(path: Path, found: Iterable[str], expected: Sequence[str]) -> None:
    missing = [name for name in expected if name not in found]
    unknown = [name for name in found if name not in expected]
    if missing:
        raise NACError(
            f"the domain {path} has no images of class {', '.join(missing)}, which another domain "
            "has. Every domain needs images of every class: add them, or leave out the class or "
            "the domain."
        )
    if unknown:
        raise NACError(
            f"the domain {path} has images of class {', '.join(unknown)}, expected only "
            f"{', '.join(expected)}. Remove the folder, or add the class to `classes`."
        )
    if len(expected) < 2:
        raise NACError(
            f"the domain {path} has images of one class only, {expected[0]}: expected at least "
            "two class folders."
        )


def _is_shown(name: str) -> bool:
    return not name.startswith(".")
