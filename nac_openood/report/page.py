"""`report.html`: one page in one file, which loads nothing else."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nac_openood.report.blocks import Document, Picture
from nac_openood.report.figures.canvas import svg
from nac_openood.report.words import ordinal

_ASSETS = Path(__file__).parent / "assets"


def render(content: Document) -> str:
    """A document as a page.

    Raises:
        NACError: if matplotlib is not installed.
    """
    templates = Environment(
        loader=FileSystemLoader(_ASSETS), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    numbers = count(1)

    def draw(picture: Picture) -> Markup:
        return svg(picture, f"picture-{next(numbers)}")

    templates.filters.update(svg=draw, ordinal=ordinal, kind=lambda block: type(block).__name__)
    return templates.get_template("page.html").render(document=content)
