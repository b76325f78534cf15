"""Transforms of images into a network's input: its own, a YAML file with settings, or code."""

from __future__ import annotations

import hashlib
import inspect
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Optional, Union

import yaml
from PIL import Image
from torch import Tensor

from nac_openood.detector.config import AUTO
from nac_openood.errors import NACError, why_unreadable
from nac_openood.files import read_text
from nac_openood.records import from_values, parse_yaml
from nac_openood.sources.code import accepts, is_code, load_code, user_code
from nac_openood.sources.images import Transform
from nac_openood.sources.networks import kind_of

if TYPE_CHECKING:
    from nac_openood.sources.sets import Benchmark

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
_EXAMPLE = """\
resize: 256                   # length of the shorter side; [256, 256] for both sides
crop: 224                     # center crop
mean: [0.485, 0.456, 0.406]   # per channel, of pixels between 0 and 1
std: [0.229, 0.224, 0.225]
"""


@dataclass(frozen=True)
class ImageSettings:
    """What happens to an RGB image, in this order; everything is optional.

    Args:
        gray: whether to convert it to one gray channel.
        resize: length of the shorter side, or height and width.
        crop: side of the square, or height and width, to cut out of the middle.
        mean: mean per channel, of pixels between 0 and 1; goes with `std`.
        std: standard deviation per channel.
        interpolation: of `resize`: nearest, bilinear, bicubic or lanczos.
    """

    gray: bool = False
    resize: Union[int, tuple[int, int], None] = None
    crop: Union[int, tuple[int, int], None] = None
    mean: Union[float, tuple[float, ...], None] = None
    std: Union[float, tuple[float, ...], None] = None
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        for name in ("resize", "crop"):
            sides = getattr(self, name)
            if sides is not None and min(sides if isinstance(sides, tuple) else [sides]) < 1:
                raise NACError(f"'{name}' must be at least 1 pixel, got {sides}.")
        channels = 1 if self.gray else 3
        for name in ("mean", "std"):
            value = getattr(self, name)
            values = (value,) * channels if isinstance(value, (int, float)) else value
            if values is not None and len(values) != channels:
                raise NACError(f"'{name}' must be {channels} numbers, one per channel.")
            if name == "std" and values is not None and not min(values) > 0:
                raise NACError(f"'std' must be positive, got {value}.")
            object.__setattr__(self, name, values and tuple(map(float, values)))
        if (self.mean is None) != (self.std is None):
            raise NACError("expected both 'mean' and 'std' or neither of them.")
        if self.interpolation not in _INTERPOLATIONS:
            raise NACError(f"'interpolation' must be one of {', '.join(_INTERPOLATIONS)}.")

    @classmethod
    def from_yaml(cls, text: str, origin: str) -> ImageSettings:
        """Read settings.

        Args:
            text: a YAML mapping.
            origin: where the text is from, for errors.
        """
        try:
            found = parse_yaml(text)
            if not isinstance(found, Mapping) or not found:
                raise NACError("expected a mapping with at least one key.")
            return from_values(cls, found)
        except NACError as error:
            problem = why_unreadable(error)
            raise NACError(f"{origin}: {problem}. For example:\n{_EXAMPLE}") from error

    def to_yaml(self) -> str:
        """The text that `from_yaml` reads."""
        default = asdict(ImageSettings())
        changed = {name: value for name, value in asdict(self).items() if value != default[name]}
        lists = {n: list(v) if isinstance(v, tuple) else v for n, v in changed.items()}
        return yaml.safe_dump(lists, sort_keys=False, default_flow_style=None)

    def transform(self) -> Transform:
        """The transform of an RGB image."""
        from torchvision import transforms

        steps: list[Any] = [transforms.Grayscale()] if self.gray else []
        if self.resize is not None:
            mode = transforms.InterpolationMode(self.interpolation)
            steps.append(transforms.Resize(self.resize, mode))
        if self.crop is not None:
            steps.append(transforms.CenterCrop(self.crop))
        steps.append(transforms.ToTensor())
        if self.mean is not None:
            steps.append(transforms.Normalize(self.mean, self.std))
        return transforms.Compose(steps)


def read_settings(path: Union[str, Path]) -> ImageSettings:
    """The settings in a YAML file."""
    settings = ImageSettings.from_yaml(read_text(path, f"the transform {path}"), str(path))
    if isinstance(settings.mean, tuple) and max(settings.mean) > 1:
        raise NACError(
            f"{path}: 'mean' and 'std' are of pixels between 0 and 1, not of 0 to 255: divide both "
            f"by 255. The mean is {list(settings.mean)}."
        )
    return settings


def square_settings(side: int) -> ImageSettings:
    """Resize to `side` x `side` and normalize as for ImageNet, as DomainBed does it."""
    return ImageSettings(resize=(side, side), mean=IMAGENET_MEAN, std=IMAGENET_STD)


class Preprocessing(NamedTuple):
    """A transform, and the text from which it can be restored.

    Args:
        transform: turns an RGB image into a tensor.
        text: "auto", YAML, or the name of code.
        origin: where the transform is from, in words.
    """

    transform: Transform
    text: str
    origin: str = ""

    @classmethod
    def of(cls, settings: ImageSettings, origin: str = "") -> Preprocessing:
        """The transform with these settings."""
        return cls(settings.transform(), settings.to_yaml(), origin)

    @property
    def identity(self) -> str:
        """A text that differs between transforms that do different things."""
        return hashlib.sha256(transform_text(self.transform).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        text = self.text if is_code(self.text) else ", ".join(self.text.splitlines())
        if self.text == AUTO:
            text = " ".join(repr(self.transform).split())
        return f"{text} ({self.origin})" if self.origin else text


def transform_text(transform: Any) -> str:
    """The `repr` of a transform, without addresses in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(transform))


def takes_text(transform: Any) -> bool:
    """Whether a transform takes texts: it then has an attribute `takes_text` that is True."""
    return bool(getattr(transform, "takes_text", False))


def chosen_transform(
    choice: Optional[str],
    arch: str,
    weights: Optional[str] = None,
    *,
    benchmark: Optional[Benchmark] = None,
) -> Preprocessing:
    """Make the transform that the user chose.

    Args:
        choice: "auto" or None for that of the network's own configuration, a YAML file with
            `ImageSettings`, or code, as in `user_transform`.
        arch: the network, as in `networks.kind_of`.
        weights: its checkpoint file, or `torchvision:NAME`.
        benchmark: the benchmark of the images, whose transform "auto" takes for networks without
            a configuration.

    Raises:
        NACError: the choice is invalid, or no transform is known for the network.
    """
    if choice is not None and choice != AUTO:
        if Path(choice).suffix in (".yml", ".yaml") or Path(choice).is_file():
            return Preprocessing.of(read_settings(choice), f"of the file {choice}")
        if is_code(choice):
            return Preprocessing(user_transform(choice), choice, "your code")
        raise NACError(f"`transform`: expected 'auto', a YAML file or code, got '{choice}'.")
    kind = kind_of(arch)
    has_own = benchmark is None or benchmark.name in kind.benchmarks
    own = kind.transform(weights) if has_own else None
    if own is not None:
        return Preprocessing(own, AUTO, kind.transform_origin(weights))
    if benchmark is not None:
        return Preprocessing.of(benchmark.settings, f"OpenOOD's for {benchmark.name}")
    raise NACError(
        f"no transform is known for {arch}: pass `transform`, a YAML file such as\n{_EXAMPLE}or "
        "code that makes a transform, path/to/file.py:name."
    )


def restored_transform(text: str) -> Preprocessing:
    """Make the transform from the settings in a file; code that a file names is not run."""
    if is_code(text):
        raise NACError(f"the file names {text}, which is run only if you pass `transform={text}`.")
    return Preprocessing.of(ImageSettings.from_yaml(text, "the transform in the detector's file"))


def user_transform(text: str) -> Transform:
    """Load a transform from the user's code, which is run.

    Args:
        text: `package.module:name` or `path/to/file.py:name`. What it names is the transform
            itself if it is an object that can be called or a function that needs an argument, the
            image. A class, or a function that needs none, is called and returns the transform.
    """
    found = load_code(text, "`transform`")
    if inspect.isclass(found) or (inspect.isroutine(found) and accepts(found)):
        with user_code(text, "`transform`"):
            found = found()
    if not callable(found):
        raise NACError(f"`transform`: {text} makes a {type(found).__name__}, not a transform.")
    return _UserTransform(found, text)


class _UserTransform:
    """The user's transform, with errors that say whose code failed."""

    def __init__(self, transform: Any, text: str) -> None:
        self.transform, self.text = transform, text

    def __call__(self, image: Image.Image) -> Tensor:
        with user_code(self.text, "`transform`"):
            made = self.transform(image)
        if not isinstance(made, Tensor):
            got = type(made).__name__
            raise NACError(f"`transform`: {self.text} returned a {got}, expected a tensor.")
        return made

    def __repr__(self) -> str:
        try:  # its source code, so that an edit changes the identity
            code = inspect.getsource(self.transform)
        except (TypeError, OSError):
            code = repr(self.transform)
        return f"{self.text}({code})"
