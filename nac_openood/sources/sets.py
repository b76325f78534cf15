"""The datasets of an OOD benchmark, by role."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence, Union

from nac_openood.errors import NACError
from nac_openood.sources.images import FileImages, Transform, folder_images
from nac_openood.sources.imglist import Benchmark

#: Names that no OOD set may have: those of other sets, and of means.
RESERVED = ("test", "train", "id_val", "ood_val", "nearood", "farood")
#: The name that stands for: there is no OOD validation data.
NO_OOD = "none"


@dataclass(frozen=True)
class Datasets:
    """What a comparison needs: map-style datasets or `DataLoader`s, as `Samples` takes them.

    Args:
        id_name: name of the in-distribution data.
        n_classes: number of its classes.
        train: training data, without augmentation.
        id_val: ID validation data.
        test: ID test data.
        ood_val: OOD validation data; None makes surrogates from `id_val`.
        near: near-OOD test sets by name.
        far: far-OOD test sets by name.
        shifted: covariate-shifted ID test sets (OpenOOD's csid) by name, for full-spectrum
            detection.
        std: standard deviation per channel by which images were normalized.
    """

    id_name: str
    n_classes: int
    train: Any
    id_val: Any
    test: Any
    ood_val: Optional[Any] = None
    near: Mapping[str, Any] = field(default_factory=dict)
    far: Mapping[str, Any] = field(default_factory=dict)
    shifted: Mapping[str, Any] = field(default_factory=dict)
    std: Optional[tuple[float, ...]] = None

    def __post_init__(self) -> None:
        for role in ("near", "far", "shifted"):
            check_mapping(role, getattr(self, role), "names", "svhn")
        check_names([*self.shifted, *self.near, *self.far])

    def roles(self) -> dict[str, str]:
        """The role of every set that is scored; the ID test set, called "test", comes first."""
        roles = {"test": "id", **dict.fromkeys(self.shifted, "csid")}
        return {**roles, **dict.fromkeys(self.near, "near"), **dict.fromkeys(self.far, "far")}

    def scored(self) -> dict[str, Any]:
        """The sets that are scored, in the order of `roles`."""
        return {"test": self.test, **self.shifted, **self.near, **self.far}


def listed_sets(
    benchmark: Benchmark,
    data_root: Union[str, Path],
    transform: Optional[Transform] = None,
    *,
    near: Optional[Sequence[str]] = None,
    far: Optional[Sequence[str]] = None,
    full_spectrum: bool = False,
    ood_val: Optional[str] = None,
    needs_test: bool = True,
) -> Datasets:
    """The sets of a benchmark in OpenOOD's layout, and image folders of your own.

    Args:
        benchmark: which benchmark.
        data_root: OpenOOD's data folder.
        transform: turns an image into a tensor; None takes the benchmark's.
        near: near-OOD sets, `NAME` of a list `test_NAME` or `NAME=FOLDER`; None takes the
            benchmark's.
        far: the same for far-OOD sets.
        full_spectrum: add the covariate-shifted ID sets.
        ood_val: list of OOD validation images without `val_`, `NAME=FOLDER`, or "none" for
            surrogates; None takes the benchmark's.
        needs_test: whether to read the lists of test sets; they may be missing otherwise.
    """
    transform = transform or benchmark.transform()
    near, far = (benchmark.near if near is None else near), (benchmark.far if far is None else far)
    names = [entry.partition("=")[0] for entry in (*near, *far)]
    check_names([name for name in names if _is_name(name)])
    listed = partial(benchmark.images, data_root, transform=transform)
    chosen = partial(_chosen, listed, transform, prefix="test_")
    validation = partial(_chosen, listed, transform, prefix="val_")
    shifted = benchmark.shifted if full_spectrum else {}
    outside = ood_val or benchmark.ood_val
    return Datasets(
        benchmark.name,
        benchmark.n_classes,
        train=listed(f"train_{benchmark.name}"),
        id_val=listed(f"val_{benchmark.name}"),
        test=listed(f"test_{benchmark.name}") if needs_test else None,
        ood_val=None if outside == NO_OOD else validation(outside)[1],
        near=dict(map(chosen, near)) if needs_test else {},
        far=dict(map(chosen, far)) if needs_test else {},
        shifted={name: listed(part) for name, part in shifted.items()},
        std=benchmark.std,
    )


def _chosen(
    listed: Callable[[str], FileImages], transform: Transform, entry: str, *, prefix: str
) -> tuple[str, FileImages]:
    """The name and the images of an OOD set, given as `NAME` of a list or as `NAME=FOLDER`."""
    name, equals, folder = entry.partition("=")
    if not _is_name(name) or (equals and not folder):
        raise NACError(f"expected NAME or NAME=FOLDER for an OOD set, got '{entry}'.")
    return name, folder_images(folder, transform) if equals else listed(f"{prefix}{name}")


def check_names(names: Sequence[str]) -> None:
    """Refuse names of test sets that are taken, repeated or not fit for a file."""
    check_file_names("a dataset", names)
    repeated = sorted({name for name in names if names.count(name) > 1})
    reserved = [name for name in names if name in RESERVED]
    if repeated:
        raise NACError(
            f"expected a different name for each OOD set, got {repeated} more than once. Name a "
            "folder differently: NAME=FOLDER."
        )
    if reserved:
        raise NACError(
            f"an OOD set cannot be called {', '.join(reserved)}; these names are reserved: "
            f"{', '.join(RESERVED)}."
        )


def check_mapping(role: str, given: Any, what: str, example: str) -> None:
    """Refuse anything but datasets by name as an argument."""
    if not isinstance(given, Mapping):
        raise NACError(
            f"`{role}` must map {what} to datasets, as in {{'{example}': dataset}}; got "
            f"{type(given).__name__}."
        )


def check_file_names(what: str, names: Iterable[str]) -> None:
    """Refuse names that no file can have."""
    for name in names:
        if not _is_name(name):
            raise NACError(
                f"the name of {what} must not be empty, contain a slash or begin with a '.', "
                f"and must be UTF-8, because files are named after it; got {name!r}."
            )


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and re.fullmatch(r"(?!\.)[^/\\\0\ud800-\udfff]+", name) is not None
