"""Which transform turns images into a network's input; nothing is guessed in silence."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any, NamedTuple, Optional

from PIL import Image
from torch import Tensor

from nac_openood.detector.config import AUTO
from nac_openood.errors import NACError
from nac_openood.files import is_file
from nac_openood.sources.code import is_code, load_code, user_code
from nac_openood.sources.image_settings import (
    EXAMPLE,
    ImageSettings,
    read_settings,
    square_settings,
)
from nac_openood.sources.images import Transform, transform_text
from nac_openood.sources.imglist import Benchmark
from nac_openood.sources.networks import kind_of

_YAML = (".yml", ".yaml")
_WHAT = "`transform`"


class Preprocessing(NamedTuple):
    """A transform, and the text that it can be made of again.

    Args:
        transform: turns an RGB image into a tensor.
        text: "auto", YAML, or the name of code.
    """

    transform: Transform
    text: str

    @classmethod
    def of(cls, settings: ImageSettings) -> Preprocessing:
        """The transform with these settings."""
        return cls(settings.transform(), settings.to_yaml())

    @property
    def identity(self) -> str:
        """A text that differs between transforms that do different things."""
        return hashlib.sha256(transform_text(self.transform).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        if self.text == AUTO:
            return f"the network's own: {' '.join(repr(self.transform).split())}"
        return self.text if is_code(self.text) else ", ".join(self.text.splitlines())


def chosen_transform(
    given: Optional[str],
    arch: str,
    weights: Optional[str] = None,
    *,
    benchmark: Optional[Benchmark] = None,
) -> Preprocessing:
    """The transform that a user asked for.

    Args:
        given: "auto" or None for that of the network's own configuration, a YAML file as in
            `image_settings`, or code, as in `user_transform`.
        arch: the network, as in `networks.kind_of`.
        weights: its checkpoint file, or `torchvision:NAME`.
        benchmark: the benchmark of the images, whose transform "auto" takes for networks without
            a configuration.

    Raises:
        NACError: there is none, or nothing is known about the network; the message shows a YAML.
    """
    if given in (None, AUTO):
        return _automatic(arch, weights, benchmark)
    assert given is not None
    if Path(given).suffix in _YAML or is_file(given):
        return Preprocessing.of(read_settings(given))
    if is_code(given):
        return Preprocessing(user_transform(given), given)
    raise NACError(
        f"{_WHAT}: expected 'auto', a YAML file, package.module:name or path/to/file.py:name, got "
        f"'{given}'."
    )


def restored_transform(text: str, arch: str, weights: Optional[str] = None) -> Preprocessing:
    """The transform that a file names by its `text`; code is not run because a file names it."""
    if text == AUTO:
        return _automatic(arch, weights, None)
    if is_code(text):
        raise NACError(
            f"the transform is {text}, which is code, and a file cannot make it run. Pass it "
            f"yourself: `transform={text}`."
        )
    return Preprocessing.of(ImageSettings.from_yaml(text, "the transform in the detector's file"))


def square_transform(side: int) -> Preprocessing:
    """Resize to a square and normalize as for ImageNet."""
    return Preprocessing.of(square_settings(side))


def _automatic(arch: str, weights: Optional[str], benchmark: Optional[Benchmark]) -> Preprocessing:
    kind = kind_of(arch)
    if benchmark is None or benchmark.name in kind.benchmarks:
        own = kind.transform(arch, weights)
        if own is not None:
            return Preprocessing(own, AUTO)
    if benchmark is not None:
        return Preprocessing.of(benchmark.settings())
    raise NACError(
        f"nothing says how images become the input of {arch}: pass `transform`, a YAML file such "
        f"as\n{EXAMPLE}or code that makes a transform, path/to/file.py:name."
    )


def user_transform(text: str) -> Transform:
    """A transform out of the user's code, which is run.

    Args:
        text: `package.module:name` or `path/to/file.py:name`. What it names is the transform
            itself if it is an object that can be called or a function that needs an argument, the
            image. A class, or a function that needs none, is called and returns the transform.
    """
    found = load_code(text, _WHAT)
    if inspect.isclass(found) or (inspect.isroutine(found) and not _needed(found)):
        with user_code(text, _WHAT):
            found = found()
    if not callable(found):
        raise NACError(
            f"{_WHAT}: {text} makes a {type(found).__name__}, expected a transform: a function of "
            "an image that returns a tensor."
        )
    return _UserTransform(found, text)


class _UserTransform:
    """The user's transform, with errors that say whose code failed."""

    def __init__(self, transform: Any, text: str) -> None:
        self.transform, self.text = transform, text

    def __call__(self, image: Image.Image) -> Tensor:
        with user_code(self.text, _WHAT):
            made = self.transform(image)
        if not isinstance(made, Tensor):
            raise NACError(
                f"{_WHAT}: {self.text} made a {type(made).__name__} of an image, expected a tensor."
            )
        return made

    def __repr__(self) -> str:
        try:  # its code, so that a change of it is noticed
            code = inspect.getsource(self.transform)
        except (TypeError, OSError):
            code = repr(self.transform)
        return f"{self.text}({code})"


def _needed(function: Any) -> bool:
    """Whether a function needs an argument."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # of a function in C
        return True
    return any(
        p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        for p in parameters
    )
