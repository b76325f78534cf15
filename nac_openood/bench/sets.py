"""The image sets of an OOD benchmark, by role."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Protocol, Sequence

from PIL import Image


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

    def roles(self) -> dict[str, str]:
        """Every set that is scored and its role, the ID test set (called "test") first."""
        roles = {"test": "id", **dict.fromkeys(self.shifted, "csid")}
        return {**roles, **dict.fromkeys(self.near, "near"), **dict.fromkeys(self.far, "far")}

    def scored(self) -> dict[str, ImageSet]:
        """The sets that are scored, in the order of `roles`."""
        return {"test": self.test, **self.shifted, **self.near, **self.far}
