"""The embedded benchmark as an OpenOOD data folder: list files and PNG images."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Optional

from nac_openood.demo.embedded import NAME, EmbeddedImages, embedded_sets
from nac_openood.errors import FileError
from nac_openood.files import PathLike, read_json
from nac_openood.sources.sets import BENCHMARKS, Datasets

_IMAGES = BENCHMARKS[NAME].folder
_LISTS = f"benchmark_imglist/{NAME}"
_MANIFEST = "manifest.json"
_FORMAT = 2


def write_openood(folder: PathLike, sets: Optional[Datasets] = None) -> Path:
    """Write the benchmark to `folder`, a data root for OpenOOD and `sources.sets`.

    A complete copy of the same images is reused; any other is replaced. Other files in the folder,
    e.g. OpenOOD's own benchmarks, are left alone.

    Args:
        folder: created if it does not exist.
        sets: the datasets; None makes them with `embedded_sets()`.

    Returns:
        The folder.
    """
    root, lists = Path(folder), lists_of(sets or embedded_sets())
    digest = hashlib.sha256()
    for name, images in lists.items():
        digest.update("\n".join([name, *_lines(images)]).encode() + images.pixels.tobytes())
    manifest = {"format": _FORMAT, "sha256": digest.hexdigest()}
    try:
        if not _is_complete(root, manifest):
            _write(root, lists, manifest)
    except OSError as error:
        if not _is_complete(root, manifest):  # unless another process was faster
            raise FileError(
                f"cannot write the embedded benchmark to {root}: {error}. Free space on the disk, "
                "or choose another folder."
            ) from error
    return root


def lists_of(sets: Datasets) -> dict[str, Any]:
    """The datasets by the names of their list files."""
    labelled = {"train": sets.train, "val": sets.id_val, "test": sets.test}
    named = {f"{part}_{NAME}": images for part, images in labelled.items()}
    named[f"val_{BENCHMARKS[NAME].ood_val}"] = sets.ood_val
    others = {**sets.shifted, **sets.near, **sets.far}
    return {**named, **{f"test_{name}": images for name, images in others.items()}}


def _is_complete(root: Path, manifest: dict[str, Any]) -> bool:
    lists = root / _LISTS
    try:
        if read_json(lists / _MANIFEST) != manifest:
            return False
        lines = [line for file in lists.glob("*.txt") for line in file.read_text().splitlines()]
    except (OSError, UnicodeDecodeError, FileError):
        return False
    # the manifest is written last, but images may have been removed since
    return bool(lines) and all((root / _IMAGES / line.split()[0]).is_file() for line in lines)


def _write(root: Path, lists: dict[str, Any], manifest: dict[str, Any]) -> None:
    """Write all files into a temporary folder, then move them to their places."""
    (root / _LISTS).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=f".{NAME}.") as temporary:
        new = Path(temporary)
        (new / _LISTS).mkdir(parents=True)
        for name, images in lists.items():
            _write_images(new / _IMAGES, images)
            (new / _LISTS / f"{name}.txt").write_text("\n".join(_lines(images)) + "\n")
        (new / _LISTS / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        # the manifest is removed first and moved last: without it, the folder is incomplete
        for part in (_LISTS, _IMAGES):
            if (root / part).exists():
                shutil.rmtree(root / part)
        for part in (_IMAGES, _LISTS):
            os.replace(new / part, root / part)  # noqa: PTH105


def _write_images(folder: Path, images: EmbeddedImages) -> None:
    for index, name in enumerate(images.names):
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        images.picture(index).save(path)


def _lines(images: EmbeddedImages) -> list[str]:
    return [f"{name}.png {label}" for name, label in zip(images.names, images.labels)]
