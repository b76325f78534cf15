"""HTML that cannot forget to escape: whatever is not `Html` already is text."""

from __future__ import annotations

from html import escape
from typing import Optional, Union

#: Elements without an end tag.
_VOID = {"img", "br", "meta", "hr"}


class Html(str):
    """Text that is markup already."""


Child = Union[str, Html, None]


def el(name: str, *children: Child, **attributes: Optional[str]) -> Html:
    """An element; children that are not `Html` are escaped.

    Args:
        name: of the tag.
        children: text or elements; None is left out.
        attributes: values are escaped; `cls` is `class`, underscores become hyphens, an empty
            text makes an attribute without a value, None leaves it out.
    """
    head = name + "".join(_attribute(k, v) for k, v in attributes.items() if v is not None)
    if name in _VOID:
        return Html(f"<{head}>")
    return Html(f"<{head}>{join(*children)}</{name}>")


def join(*children: Child) -> Html:
    """Elements and text one after another."""
    parts = [c if isinstance(c, Html) else escape(c) for c in children if c is not None]
    return Html("".join(parts))


def _attribute(name: str, value: str) -> str:
    name = "class" if name == "cls" else name.rstrip("_").replace("_", "-")
    return f' {name}="{escape(value)}"' if value else f" {name}"


def scroll_box(label: str, table: Html) -> Html:
    """A table that scrolls inside its own box, also by keyboard."""
    return el("div", table, cls="scroll", tabindex="0", role="region", aria_label=label)


def section(key: str, title: str, *children: Child) -> Html:
    """A part of the page with a heading that can be linked to."""
    heading = el("h2", title, id=f"{key}-title")
    return el("section", heading, *children, id=key, aria_labelledby=f"{key}-title")


def figure(picture: Html, caption: Child = None, **attributes: Optional[str]) -> Html:
    """A picture and what is to be seen in it."""
    below = None if caption is None else el("figcaption", caption)
    return el("figure", picture, below, **attributes)
