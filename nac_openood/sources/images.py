"""Image files: finding them in folders, opening them in RGB, and small copies for web pages."""

from __future__ import annotations

import io
import os
from base64 import b64encode
from pathlib import Path
from typing import BinaryIO, Callable, Iterator, Union

from PIL import Image, ImageFile, UnidentifiedImageError
from torch import Tensor

from nac_openood.errors import NACError, why_unreadable
from nac_openood.files import entries

#: Turns an RGB image into a network's input.
Transform = Callable[[Image.Image], Tensor]
#: Formats that Pillow decodes itself or with one widely used library.
COMMON_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
#: A transform that resizes the shorter side to 224 pixels makes 224 x 11,200 of such an image.
MAX_RATIO = 50
_SUFFIXES = frozenset(Image.registered_extensions())
#: Pillow goes by the content, so photo.png may be an EPS file, for which it starts Ghostscript, or
#: a PSD file, which could write out of bounds before Pillow 12.1.1 (CVE-2026-25990).
_SAFE_FORMATS = tuple(name for name in Image.OPEN if name not in ("EPS", "PSD"))


class ImageError(NACError):
    """An image cannot be read; the message says why."""


class NotAnImageError(ImageError):
    """The file is not an image, or not in an accepted format."""


class LargeImageError(ImageError):
    """The image has more pixels than are accepted."""


def rgb_image(
    source: Union[Path, BinaryIO], *, formats: tuple[str, ...] = (), max_pixels: int = 0
) -> Image.Image:
    """Open an image in RGB: its first frame, ignoring orientation and alpha channel.

    Args:
        source: a path, or an open file.
        formats: names of accepted formats as Pillow spells them; none accepts all that Pillow
            reads safely.
        max_pixels: refuse images with more pixels, or much wider than high, by their header alone,
            as is advisable for untrusted images; 0 accepts any size.

    Raises:
        ImageError: or one of its subclasses.
    """
    # importing OpenOOD makes Pillow fill truncated files with gray in the whole process
    before, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
    try:
        with Image.open(source, formats=formats or _SAFE_FORMATS) as image:
            _check_header(image, max_pixels)
            return image.convert("RGB")
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        accepted = f", or not of a format in {', '.join(formats)}" if formats else ""
        raise NotAnImageError(f"not an image{accepted}") from error
    except Image.DecompressionBombError as error:
        raise LargeImageError(str(error)) from error
    except Exception as error:  # on a broken file a decoder may raise anything
        raise ImageError(why_unreadable(error) or type(error).__name__) from error
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


def _check_header(image: Image.Image, max_pixels: int) -> None:
    size, (short, long) = " x ".join(map(str, image.size)), sorted(image.size)
    if max_pixels and short * long > max_pixels:
        raise LargeImageError(f"{size} pixels are more than the {max_pixels:,} that are accepted")
    if max_pixels and long > MAX_RATIO * short:
        raise LargeImageError(f"{size} pixels: one side is more than {MAX_RATIO} times the other")
    if image.mode[0] in "IF":  # Pillow would clip these at 255, to almost white
        raise ImageError(f"more than 8 bits per channel (mode {image.mode}): convert it to 8")


def sample_names(folder: Union[str, Path], *, texts: bool = False) -> list[str]:
    """The paths of images in a folder and its subfolders, relative to it and sorted.

    Links to folders are followed, as torchvision's `ImageFolder` does, unless they lead back to a
    folder above them. Broken links are listed too.

    Args:
        folder: the folder.
        texts: whether to list text files instead.

    Raises:
        NACError: a folder cannot be read, or there are no such files.
    """
    root, suffixes = Path(folder), {".txt"} if texts else _SUFFIXES
    if not root.is_dir():
        raise NACError(f"there is no folder {folder}: expected a folder of images.")

    def walk(folder: Path, above: set[str]) -> Iterator[str]:
        for path in entries(folder):
            if os.path.isdir(path):  # noqa: PTH112, unlike pathlib's it never raises
                real = os.path.realpath(path)
                if real not in above:
                    yield from walk(path, {*above, real})
            elif path.suffix.lower() in suffixes:
                yield path.relative_to(root).as_posix()

    names = sorted(walk(root, {os.path.realpath(root)}))
    if not names:
        what, example = ("texts", "a.txt") if texts else ("images", ".png or .jpg")
        raise NACError(f"{folder} holds no {what}: expected files such as {example} in it.")
    return names


def small_png(picture: Image.Image) -> bytes:
    """A copy in RGB of at most 96 x 96 pixels, as a PNG."""
    small = picture.convert("RGB")
    small.thumbnail((96, 96))
    out = io.BytesIO()
    small.save(out, "PNG")
    return out.getvalue()


def png_url(content: bytes) -> str:
    """A PNG as a data URL, which a page can show without a file."""
    return f"data:image/png;base64,{b64encode(content).decode()}"
