"""Image files as a dataset; bad files are found before a long run and named in errors."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any, Callable, Optional, Sequence, Union

import numpy as np
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from nac_openood.errors import NACError, some
from nac_openood.files import is_folder
from nac_openood.progress import bar
from nac_openood.sources.decoding import ImageError, rgb_image
from nac_openood.sources.listing import files_in

Transform = Callable[[Image.Image], Tensor]

_SUFFIXES = frozenset(Image.registered_extensions())


class FileImages(Dataset[dict[str, Any]]):
    """Image files as OpenOOD's `{'data', 'label'}` dicts.

    Args:
        names: paths relative to `root`.
        labels: a label per image, -1 if it has none.
        root: folder of the images.
        transform: turns an RGB image into a tensor.
        origin: where the names come from, for errors.
        classes: names of the classes in the order of their labels, where they are known.
    """

    def __init__(
        self,
        names: Sequence[str],
        labels: Union[Sequence[int], np.ndarray],
        root: Path,
        transform: Transform,
        origin: str,
        classes: Sequence[str] = (),
    ) -> None:
        self.names, self.root, self.transform, self.origin = list(names), root, transform, origin
        self.classes = tuple(classes)
        self.labels = np.asarray(labels, dtype=np.int64)
        self._identity: Optional[str] = None

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"data": self.transform(self.picture(index)), "label": int(self.labels[index])}

    def picture(self, index: int) -> Image.Image:
        """The image, in RGB."""
        path = self.root / self.names[index]
        reason = open_image(path)
        if isinstance(reason, Image.Image):
            return reason
        if reason == "missing" and not path.is_symlink():
            raise NACError(
                f"there is no image {path}, which is named in {self.origin}. Check `data_root`."
            )
        raise NACError(
            f"the image {path} cannot be read ({reason}). Replace it, or take it out of "
            f"{self.origin}."
        )

    def without(self, indices: Sequence[int]) -> FileImages:
        """The same images without some of them."""
        kept = np.setdiff1d(np.arange(len(self)), indices)
        names = [self.names[i] for i in kept]
        same = self.root, self.transform, self.origin, self.classes
        return FileImages(names, self.labels[kept], *same)

    def identity(self) -> str:
        """A hash of the names, labels, sizes and times of change of all files and the transform.

        Computed once, since a million files take a while.
        """
        if self._identity is None:
            digest = hashlib.sha256(transform_text(self.transform).encode())
            for name, label in zip(self.names, self.labels):
                line = f"{name}\0{label}\0{_stamp(self.root / name)}\n"
                digest.update(line.encode("utf-8", "surrogateescape"))
            self._identity = digest.hexdigest()[:16]
        return self._identity


def transform_text(transform: Transform) -> str:
    """What a transform says it is; a function by its name, not by its address in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(transform))


def folder_images(folder: Union[str, Path], transform: Transform) -> FileImages:
    """All images in a folder and its subfolders, sorted by path, without labels."""
    root, names = Path(folder), image_names(folder)
    return FileImages(names, [-1] * len(names), root, transform, f"the folder {root}")


def image_names(folder: Union[str, Path]) -> list[str]:
    """The paths of all images in a folder and its subfolders, relative to it and sorted."""
    root = Path(folder)
    if not is_folder(root):
        raise NACError(f"there is no folder {root}: expected a folder of images.")
    names = files_in(root, _SUFFIXES)
    if not names:
        raise NACError(
            f"{root} holds no images: expected files such as .png or .jpg in it or its subfolders."
        )
    return names


def common_files(one: Any, other: Any) -> int:
    """How many files two sets of images share; 0 where either is something else."""
    if not isinstance(one, FileImages) or not isinstance(other, FileImages):
        return 0
    # realpath, because resolve fails at a link to itself
    paths = ({os.path.realpath(each.root / n) for n in each.names} for each in (one, other))
    return len(set.intersection(*paths))


def bad_images(
    images: FileImages, *, workers: int = 0, progress: Optional[bool] = None, title: str = "images"
) -> dict[int, str]:
    """The reason for each missing or unreadable image, by index. Decodes every image once."""
    paths: Any = [images.root / name for name in images.names]
    loader = DataLoader(paths, batch_size=64, num_workers=workers, collate_fn=_problems)
    found = [why for batch in bar(loader, f"check {title}", progress) for why in batch]
    return {index: why for index, why in enumerate(found) if why}


def told(images: FileImages, bad: dict[int, str]) -> str:
    """A sentence that names the first few bad images and counts them all."""
    every = [f"{images.root / images.names[i]} ({why})" for i, why in bad.items()]
    return f"{len(bad)} of {len(images)} images are missing or unreadable: {some(every)}"


def _problems(paths: Sequence[Path]) -> list[str]:
    found = map(open_image, paths)
    return [reason if isinstance(reason, str) else "" for reason in found]


def open_image(path: Path) -> Union[Image.Image, str]:
    """The image in RGB, or the reason why it cannot be read."""
    try:
        return rgb_image(path)
    except ImageError as error:
        return str(error)


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "missing"
    return f"{status.st_size} {status.st_mtime_ns}"
