"""Missing and unreadable images are found before the long part, named and counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Optional

from nac_openood.bench.images import FileImages, bad_images, told
from nac_openood.bench.sets import ImageSets
from nac_openood.compare import cells
from nac_openood.errors import NACError

_MEMORY = "images.json"
_SINGLE = ("train", "id_val", "ood_val", "test")


def vetted(
    sets: ImageSets,
    out: Path,
    *,
    skip_bad: bool = False,
    workers: int = 0,
    progress: Optional[bool] = None,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[ImageSets, dict[str, int]]:
    """The sets without bad images, and how many were left out of each.

    Args:
        sets: of image files; others are taken as they are.
        out: remembers which files were looked at, so that a second run does not look again.
        skip_bad: leave bad images out instead of refusing to go on.
        workers: processes that look.
        progress: None shows bars on a terminal.
        say: is told what is left out.

    Raises:
        NACError: naming bad images of every set, unless they are to be skipped.
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
        if not bad:  # only what is whole is remembered: a bad file may be readable next time
            known[identity] = name
            cells.write_note(out / _MEMORY, known)
            return images
        errors.append(f"{name}: {told(images, bad)}")
        skipped[name] = len(bad)
        return images.without(list(bad))

    found: dict[str, Any] = {n: look(n, getattr(sets, n)) for n in _SINGLE}
    for role in ("near", "far", "shifted"):
        found[role] = {n: look(n, images) for n, images in getattr(sets, role).items()}
    if errors and not skip_bad:
        raise NACError(
            f"{'; '.join(errors)}. Replace them, or leave them out with --skip-bad (the numbers "
            "are then of the remaining images)."
        )
    for error in errors:
        say(f"left out: {error}")
    return replace(sets, **found), skipped
