"""How an image is opened: in RGB, the first frame, without filling what is missing.

And how it is made small, for pages.
"""

from __future__ import annotations

import io
import re
from base64 import b64encode
from functools import cache
from pathlib import Path
from typing import BinaryIO, Optional, Union

import PIL
from PIL import Image, ImageFile, UnidentifiedImageError

from nac_openood.errors import NACError

#: Formats that are decoded by Pillow itself or by one widely used library, no interpreters.
COMMON_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
#: Before this version of Pillow, a crafted PSD file could write out of bounds (CVE-2026-25990).
_SAFE_PSD = (12, 1, 1)
#: A transform that resizes the shorter side to 224 pixels makes 224 x 11,200 of such an image.
MAX_RATIO = 50
_SMALL = 96  # pixels


class ImageError(NACError):
    """An image cannot be read; the message says why."""


class NoImageError(ImageError):
    """It is no image of an accepted format."""


class LargeImageError(ImageError):
    """It has more pixels than are accepted."""


def rgb_image(
    source: Union[Path, BinaryIO],
    *,
    formats: Optional[tuple[str, ...]] = None,
    max_pixels: Optional[int] = None,
) -> Image.Image:
    """The image in RGB: the first frame, and orientation and alpha channel left aside.

    Args:
        source: a file, or an open one.
        formats: names of accepted formats as Pillow spells them; None accepts all that Pillow
            reads safely.
        max_pixels: decode only images of at most so many pixels, and not much wider than high.
            For images of strangers: the header is checked first, so that refusing costs no memory.

    Raises:
        ImageError: or one of its subclasses.
    """
    # importing OpenOOD makes Pillow fill truncated files with gray in the whole process
    before, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
    try:
        if isinstance(source, Path) and source.exists() and not source.is_file():
            raise ImageError("not a regular file")  # opening a pipe would wait for a writer
        with Image.open(source, formats=formats or _own_formats()) as image:
            if max_pixels is not None:
                _check_size(image, max_pixels)
            _check_depth(image)
            return image.convert("RGB")
    except FileNotFoundError:
        raise ImageError("missing") from None
    except UnidentifiedImageError as error:
        told = str(error) if isinstance(source, Path) else "not an image"
        wanted = f"{told}, or not of a format in {', '.join(formats)}" if formats else told
        raise NoImageError(wanted) from error
    except Image.DecompressionBombError as error:
        raise LargeImageError(str(error)) from error
    except ImageError:
        raise
    except Exception as error:  # on a broken file a decoder may raise anything
        raise ImageError(str(error) or type(error).__name__) from error
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


def small_png(picture: Image.Image) -> bytes:
    """A small copy in RGB as a PNG; the picture itself, which may be the caller's, is kept."""
    small = picture.convert("RGB")
    small.thumbnail((_SMALL, _SMALL))
    out = io.BytesIO()
    small.save(out, "PNG")
    return out.getvalue()


def png_url(content: bytes) -> str:
    """A PNG as a data URL, which a page can show without a file."""
    return f"data:image/png;base64,{b64encode(content).decode()}"


@cache
def _own_formats() -> tuple[str, ...]:
    """What Pillow reads safely; a file's content decides, so photo.png may be an EPS."""
    Image.init()
    unsafe = {"EPS"}  # for which Pillow starts Ghostscript
    if tuple(map(int, re.findall(r"\d+", PIL.__version__)[:3])) < _SAFE_PSD:
        unsafe.add("PSD")
    return tuple(name for name in Image.OPEN if name not in unsafe)


def _check_size(image: Image.Image, max_pixels: int) -> None:
    """Refuse a large image by its header."""
    width, height = image.size
    if width * height > max_pixels:
        raise LargeImageError(
            f"{width} x {height} pixels are more than the {max_pixels:,} that are accepted"
        )
    if max(width, height) > MAX_RATIO * min(width, height):
        raise LargeImageError(
            f"{width} x {height} pixels: one side is more than {MAX_RATIO} times as long as the "
            "other"
        )


def _check_depth(image: Image.Image) -> None:
    if image.mode[0] in "IF":  # which Pillow would cut off at 255: almost all white
        raise ImageError(
            f"it has more than 8 bits per channel (mode {image.mode}). Convert it to 8 bits"
        )
