"""The datasets of an OOD benchmark from image folders of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Optional, Sequence, Union

from nac_openood.errors import NACError
from nac_openood.sources.domains import DomainFolder, domainbed_transform, split_indices
from nac_openood.sources.images import FileImages, Transform, folder_images
from nac_openood.sources.sets import NO_OOD, Datasets, check_names


def folder_sets(
    train: Union[str, Path],
    *,
    val: Union[str, Path, None] = None,
    test: Union[str, Path, None] = None,
    near: Sequence[str] = (),
    far: Sequence[str] = (),
    ood_val: Optional[str] = None,
    transform: Optional[Transform] = None,
    seed: int = 0,
) -> Datasets:
    """Datasets out of folders.

    Args:
        train: training images, in a subfolder for each class.
        val: ID validation images in the same subfolders; None holds out 20 % of `train`.
        test: the same for ID test images.
        near: near-OOD sets, each as `NAME=FOLDER`; their subfolders do not matter.
        far: the same for far-OOD sets.
        ood_val: OOD validation set as `NAME=FOLDER`; None or "none" makes surrogates of ID
            validation images.
        transform: turns an image into a tensor; None takes `domainbed_transform()`.
        seed: random seed of the splits.
    """
    transform = transform or domainbed_transform()
    folder = DomainFolder(train, None, transform)
    images = FileImages(folder.names, folder.labels, folder.path, transform, folder.origin)
    parts: dict[str, FileImages] = {}
    for number, (role, given) in enumerate((("val", val), ("test", test))):
        if given is None:
            images, parts[role] = _split(images, seed + number)
        else:
            own = DomainFolder(given, folder.classes, transform)
            parts[role] = FileImages(own.names, own.labels, own.path, transform, own.origin)
    outside = None if ood_val in (None, NO_OOD) else _named([str(ood_val)], transform)
    near_sets, far_sets = _named(near, transform), _named(far, transform)
    check_names([*near_sets, *far_sets])
    return Datasets(
        Path(train).resolve().name, len(folder.classes), images, parts["val"], parts["test"],
        None if outside is None else next(iter(outside.values())), near_sets, far_sets,
    )  # fmt: skip


def _split(images: FileImages, seed: int) -> tuple[FileImages, FileImages]:
    """The images without 20 % of them, and those."""
    kept, held = split_indices(len(images), seed)
    return images.without(held.tolist()), images.without(kept.tolist())


def _named(entries: Sequence[str], transform: Transform) -> dict[str, FileImages]:
    found = {}
    for entry in entries:
        name, _, folder = entry.partition("=")
        if not name or not folder:
            raise NACError(
                f"expected NAME=FOLDER for a set of images of your own, got '{entry}': there are "
                "no lists to look a name up in."
            )
        found[name] = folder_images(folder, transform)
    return found
