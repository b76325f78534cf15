"""Missing and unreadable images are found, named and counted before the long part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from nac_openood.benchmark.run import cells
from nac_openood.errors import NACError
from nac_openood.progress import Say
from nac_openood.sources.samples import FileImages, bad_images, bad_images_text
from nac_openood.sources.sets import Datasets

_MEMORY = "images.json"
_SINGLE = ("train", "id_val", "ood_val", "test")


def vetted(
    sets: Datasets,
    out: Path,
    *,
    skip_bad: bool = False,
    workers: int = 0,
    progress: Optional[bool] = None,
    say: Say = lambda text: None,
) -> tuple[Datasets, dict[str, int]]:
    """The datasets without bad images, and how many were left out of each.

    Args:
        sets: the datasets; only those of image files (`FileImages`) are checked.
        out: folder that remembers which datasets were checked, so that they are not again.
        skip_bad: leave bad images out instead of raising an error.
        workers: number of processes that read images.
        progress: None shows progress bars on a terminal.
        say: is told what is left out.

    Raises:
        NACError: naming bad images of every dataset, unless `skip_bad` is set.
    """
    known = cells.read_note(out / _MEMORY) or {}
    errors: list[str] = []
    skipped: dict[str, int] = {}

    def look(name: str, images: Any) -> Any:
        if not isinstance(images, FileImages):
            return images
        identity = images.identity()
        if identity in known:
            return images
        bad = bad_images(images, workers=workers, progress=progress, title=name)
        if not bad:  # a bad file may be readable next time, so it is not remembered
            known[identity] = name
            cells.write_note(out / _MEMORY, known)
            return images
        errors.append(f"{name}: {bad_images_text(images, bad)}")
        skipped[name] = len(bad)
        return images.without(list(bad))

    found: dict[str, Any] = {n: look(n, getattr(sets, n)) for n in _SINGLE}
    for role in ("near", "far", "shifted"):
        found[role] = {n: look(n, images) for n, images in getattr(sets, role).items()}
    if errors and not skip_bad:
        raise NACError(
            f"{'; '.join(errors)}. Replace them, or pass `skip_bad=True` to leave them out (the "
            "numbers are then those of the remaining images)."
        )
    for error in errors:
        say(f"left out: {error}")
    return replace(sets, **found), skipped
