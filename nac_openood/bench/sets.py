"""The image sets of an OOD benchmark, by role."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Optional, Protocol, Sequence, Union

from PIL import Image

from nac_openood.bench.images import FileImages, Transform, folder_images
from nac_openood.bench.imglist import Benchmark
from nac_openood.errors import NACError

#: What other images and means are called; no test set may be.
RESERVED = ("test", "train", "id_val", "ood_val", "nearood", "farood")
#: The name that says: there are no OOD validation images.
NO_OOD = "none"


class ImageSet(Protocol):
    """Images that can be asked for one by one, with a name each."""

    @property
    def names(self) -> Sequence[str]:
        """A name for each image: its path, or whatever tells it apart."""

    def __len__(self) -> int:
        """How many images."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        """`{'data': tensor, 'label': int}`; the label is -1 where there is none."""

    def picture(self, index: int) -> Image.Image:
        """The image for people to look at, before any transform."""

    def identity(self) -> str:
        """Tells these images from any others; results remember it."""


@dataclass(frozen=True)
class ImageSets:
    """What a comparison needs of a benchmark.

    Args:
        name: of the in-distribution data.
        n_classes: of it.
        train: training images under the test transform.
        id_val: ID validation images.
        test: ID test images.
        ood_val: OOD validation images, or None.
        near: near-OOD test sets by name.
        far: far-OOD test sets by name.
        shifted: covariate-shifted ID test sets (OpenOOD's csid) by name; used for full-spectrum
            detection only.
        std: of the channels, by which images were normalized.
    """

    name: str
    n_classes: int
    train: ImageSet
    id_val: ImageSet
    test: ImageSet
    ood_val: Optional[ImageSet] = None
    near: Mapping[str, ImageSet] = field(default_factory=dict)
    far: Mapping[str, ImageSet] = field(default_factory=dict)
    shifted: Mapping[str, ImageSet] = field(default_factory=dict)
    std: Optional[tuple[float, ...]] = None

    def __post_init__(self) -> None:
        check_names([*self.shifted, *self.near, *self.far])

    def roles(self) -> dict[str, str]:
        """Every set that is scored and its role, the ID test set (called "test") first."""
        roles = {"test": "id", **dict.fromkeys(self.shifted, "csid")}
        return {**roles, **dict.fromkeys(self.near, "near"), **dict.fromkeys(self.far, "far")}

    def scored(self) -> dict[str, ImageSet]:
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
) -> ImageSets:
    """The sets of a benchmark in OpenOOD's layout, and image folders of one's own.

    Args:
        benchmark: which.
        data_root: OpenOOD's data folder.
        transform: of the images; None takes the benchmark's.
        near: near-OOD sets, `NAME` of a list `test_NAME` or `NAME=FOLDER`; None takes the
            benchmark's.
        far: the same of far-OOD sets.
        full_spectrum: also the covariate-shifted ID sets.
        ood_val: list of OOD validation images without `val_`, `NAME=FOLDER`, or "none"; None
            takes the benchmark's.
    """
    transform = transform or benchmark.transform()

    def listed(part: str) -> FileImages:
        return benchmark.images(data_root, part, transform)

    def chosen(entry: str, prefix: str) -> tuple[str, FileImages]:
        name, equals, folder = entry.partition("=")
        if not name or (equals and not folder) or "/" in name or name.startswith("."):
            raise NACError(f"expected NAME or NAME=FOLDER for an OOD set, got '{entry}'.")
        return name, folder_images(folder, transform) if equals else listed(f"{prefix}_{name}")

    roles = {"near": near, "far": far}
    given = {role: getattr(benchmark, role) if e is None else e for role, e in roles.items()}
    check_names([entry.partition("=")[0] for role in given.values() for entry in role])
    against = ood_val or benchmark.ood_val
    return ImageSets(
        benchmark.name,
        benchmark.n_classes,
        train=listed(f"train_{benchmark.name}"),
        id_val=listed(f"val_{benchmark.name}"),
        test=listed(f"test_{benchmark.name}"),
        ood_val=None if against == NO_OOD else chosen(against, "val")[1],
        near=dict(chosen(entry, "test") for entry in given["near"]),
        far=dict(chosen(entry, "test") for entry in given["far"]),
        shifted={n: listed(p) for n, p in benchmark.shifted.items()} if full_spectrum else {},
        std=benchmark.std,
    )


def check_names(names: Sequence[str]) -> None:
    """Refuse test sets that share a name, with each other or with what is not a test set."""
    double = sorted({n for n in names if names.count(n) > 1 or n in RESERVED})
    if double:
        raise NACError(
            f"each OOD set needs a name of its own, other than {', '.join(RESERVED)}; {double} "
            "will not do, or not more than once. Name a folder differently: NAME=FOLDER."
        )
