"""Pages of the docs, from the Jinja2 templates in this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2


def rendered(template: str, *, trim: bool = True, **values: Any) -> str:
    """A template of this folder, filled in.

    Args:
        template: name of the file.
        trim: whether lines that hold nothing but a tag leave no line behind.
        values: what the template refers to.
    """
    # what is written is Markdown, so nothing is escaped as HTML
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True, trim_blocks=trim, lstrip_blocks=trim,
    )  # fmt: skip
    return templates.get_template(template).render(**values)
