"""How an image becomes a tensor, as a small YAML file: resize, crop, mean, std."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Union

import yaml

from nac_openood.core.layer_config import refuse_unknown
from nac_openood.errors import NACError
from nac_openood.files import read_text
from nac_openood.records import parse_yaml
from nac_openood.sources.images import Transform

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
EXAMPLE = """\
resize: 256                   # length of the shorter side; [256, 256] for both sides
crop: 224                     # center crop
mean: [0.485, 0.456, 0.406]   # per channel, of pixels between 0 and 1
std: [0.229, 0.224, 0.225]
"""


@dataclass(frozen=True)
class ImageSettings:
    """What happens to an RGB image, in this order; everything is optional.

    Args:
        gray: whether to make one gray channel of it.
        resize: length of the shorter side, or height and width.
        crop: side of the square, or height and width, to cut out of the middle.
        mean: mean per channel, of pixels between 0 and 1; goes with `std`.
        std: standard deviation per channel.
        interpolation: of `resize`: nearest, bilinear, bicubic or lanczos.
    """

    gray: bool = False
    resize: Union[int, tuple[int, int], None] = None
    crop: Union[int, tuple[int, int], None] = None
    mean: Optional[tuple[float, ...]] = None
    std: Optional[tuple[float, ...]] = None
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        for name in ("resize", "crop"):
            object.__setattr__(self, name, _size(name, getattr(self, name)))
        for name in ("mean", "std"):
            given = _numbers(name, getattr(self, name), 1 if self.gray else 3)
            object.__setattr__(self, name, given)
        if (self.mean is None) != (self.std is None):
            raise NACError("expected both 'mean' and 'std' or neither of them.")
        if self.std is not None and min(self.std) <= 0:
            raise NACError(f"'std' must be above 0, got {list(self.std)}.")
        if self.interpolation not in _INTERPOLATIONS:
            raise NACError(
                f"'interpolation' must be one of {', '.join(_INTERPOLATIONS)}, got "
                f"{self.interpolation!r}."
            )
        if not isinstance(self.gray, bool):
            raise NACError(f"'gray' must be true or false, got {self.gray!r}.")

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
                raise NACError("expected a mapping with at least one key")
            refuse_unknown(found, {entry.name for entry in fields(cls)})
            return cls(**found)
        except NACError as error:
            raise NACError(f"{origin}: {error} For example:\n{EXAMPLE}") from error

    def to_yaml(self) -> str:
        """The text that `from_yaml` reads."""
        default = asdict(ImageSettings())
        used = {name: value for name, value in asdict(self).items() if value != default[name]}
        plain = {n: list(v) if isinstance(v, tuple) else v for n, v in used.items()}
        text: str = yaml.safe_dump(plain, sort_keys=False, default_flow_style=None)
        return text

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
        composed: Transform = transforms.Compose(steps)
        return composed


def read_settings(path: Union[str, Path]) -> ImageSettings:
    """The settings in a YAML file."""
    return ImageSettings.from_yaml(read_text(path, f"the transform {path}"), str(path))


def square_settings(side: int) -> ImageSettings:
    """Resize to `side` x `side` and normalize as for ImageNet, as DomainBed does it."""
    return ImageSettings(resize=(side, side), mean=IMAGENET_MEAN, std=IMAGENET_STD)


def _size(name: str, given: Any) -> Union[int, tuple[int, int], None]:
    if given is None:
        return None
    sides = [given] if isinstance(given, int) else given
    is_size = isinstance(given, int) or (isinstance(given, Sequence) and len(given) == 2)
    if not is_size or not all(type(side) is int and side > 0 for side in sides):
        raise NACError(f"'{name}' must be a positive whole number or two of them, got {given!r}.")
    return given if isinstance(given, int) else (given[0], given[1])


def _numbers(name: str, given: Any, channels: int) -> Optional[tuple[float, ...]]:
    if given is None:
        return None
    values = [given] if isinstance(given, (int, float)) else given
    is_list = isinstance(values, Sequence) and len(values) in (1, channels)
    if not is_list or not all(isinstance(v, (int, float)) for v in values):
        raise NACError(f"'{name}' must be {channels} numbers, one per channel, got {given!r}.")
    return tuple(float(v) for v in values) * (channels // len(values))
