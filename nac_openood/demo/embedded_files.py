"""The embedded benchmark as an OpenOOD data folder: list files and PNG images.

`images_embedded/` and then `benchmark_imglist/embedded/` are renamed into place, the lists with
their manifest last. So a folder with a manifest is complete, even if writing was interrupted.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, Optional

from nac_openood.demo.embedded import NAME, EmbeddedImages, embedded_sets
from nac_openood.errors import FileError
from nac_openood.files import PathLike, read_json
from nac_openood.sources.imglist import BENCHMARKS
from nac_openood.sources.sets import Datasets

_IMAGES = BENCHMARKS[NAME].folder
_LISTS = f"benchmark_imglist/{NAME}"
_MANIFEST = "manifest.json"
_FORMAT = 2


def write_openood(folder: PathLike, sets: Optional[Datasets] = None) -> Path:
    """Write the benchmark to `folder`, a data root for OpenOOD and `sources.imglist`.

    A complete copy of the same images is reused; any other is replaced. Other files in the folder,
    e.g. OpenOOD's own benchmarks, are left alone.

    Args:
        folder: created if it does not exist.
        sets: the datasets; None makes them with `embedded_sets()`.

    Returns:
        The folder.
    """
    root, sets = Path(folder), sets or embedded_sets()
    wanted = _manifest(sets)
    if _is_whole(root, wanted):
        return root
    try:
        _write(root, sets, wanted)
    except OSError as error:
        if _is_whole(root, wanted):  # another process was faster
            return root
        raise FileError(
            f"cannot write the embedded benchmark to {root}: {error}. Free space on the disk, or "
            "choose another folder."
        ) from error
    return root


def lists_of(sets: Datasets) -> dict[str, Any]:
    """The datasets by the names of their list files."""
    lists: dict[str, Any] = {"train": sets.train, "val": sets.id_val, "test": sets.test}
    named = {f"{part}_{NAME}": images for part, images in lists.items()}
    named[f"val_{BENCHMARKS[NAME].ood_val}"] = sets.ood_val
    others = {**sets.shifted, **sets.near, **sets.far}
    return {**named, **{f"test_{name}": images for name, images in others.items()}}


def _manifest(sets: Datasets) -> dict[str, Any]:
    digest = hashlib.sha256()
    for name, images in lists_of(sets).items():
        digest.update("\n".join([name, *_lines(images)]).encode())
        digest.update(images.pixels.tobytes())
    return {"format": _FORMAT, "sha256": digest.hexdigest()}


def _is_whole(root: Path, wanted: dict[str, Any]) -> bool:
    lists = root / _LISTS
    try:
        if read_json(lists / _MANIFEST) != wanted:
            return False
        lines = [line for file in lists.glob("*.txt") for line in file.read_text().splitlines()]
    except (OSError, UnicodeDecodeError, FileError):
        return False
    # a manifest is written last, but images may have been removed since
    return bool(lines) and all((root / _IMAGES / line.split()[0]).is_file() for line in lines)


def _write(root: Path, sets: Datasets, manifest: dict[str, Any]) -> None:
    lists, images = root / _LISTS, root / _IMAGES
    lists.parent.mkdir(parents=True, exist_ok=True)
    with _aside(lists) as new_lists, _aside(images) as new_images:
        for name, part in lists_of(sets).items():
            _write_images(new_images, part)
            (new_lists / f"{name}.txt").write_text("\n".join(_lines(part)) + "\n")
        (new_lists / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        # from here to the last line there is no manifest, so the folder counts as incomplete
        for old in (lists, images):
            if old.exists():
                shutil.rmtree(old)
        os.replace(new_images, images)  # noqa: PTH105
        os.replace(new_lists, lists)  # noqa: PTH105


def _write_images(folder: Path, images: EmbeddedImages) -> None:
    for index, name in enumerate(images.names):
        path = folder / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        images.picture(index).save(path)


def _lines(images: EmbeddedImages) -> list[str]:
    return [f"{name}.png {label}" for name, label in zip(images.names, images.labels)]


@contextmanager
def _aside(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target`, removed at the end unless it was renamed."""
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        temporary.chmod(0o755)  # mkdtemp makes private folders
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
