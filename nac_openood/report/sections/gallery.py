"""The images NAC finds hardest."""

from __future__ import annotations

import io
from base64 import b64encode
from typing import Optional

from nac_openood.compare.results import Example, Results
from nac_openood.report.markup import Html, el, section
from nac_openood.report.words import set_title

_KINDS = {
    "id-lowest": (
        "In-distribution, scored lowest",
        "In-distribution images that NAC trusts least.",
    ),
    "ood-highest": ("OOD, scored highest", "OOD images that NAC trusts most."),
}
_LIGHT = 30_000  # bytes of a picture that goes into the page as it is
_SIDE = 128  # pixels of one that does not


def gallery(results: Results) -> Optional[Html]:
    """Thumbnails with the score of every layer; None without any."""
    scale = max([1.0, *(v for e in results.gallery for v in e.layers.values() if v == v)])
    parts: list[Html] = []
    for kind, (title, text) in _KINDS.items():
        cards = [_card(results, e, scale) for e in results.gallery if e.kind == kind]
        shown = [card for card in cards if card is not None]
        if shown:
            parts += [el("h3", title), el("p", text), el("div", *shown, cls="gallery")]
    return section("gallery", "The hardest images", *parts) if parts else None


def _card(results: Results, example: Example, scale: float) -> Optional[Html]:
    source = _embedded(results, example)
    if source is None:
        return None
    title = set_title(example.dataset)
    alt = f"{example.name} of {title}, score {example.score:.3f}"
    rows = [_bar(name, value, scale) for name, value in example.layers.items()]
    return el(
        "div",
        el("img", src=source, alt=alt, width="96", height="96"),
        el("div", f"{title} ", el("b", f"{example.score:.3f}"), cls="card-head"),
        el("div", example.name, cls="path"),
        el("div", *rows, cls="layer-bars") if rows else None,
        cls="card",
    )


def _bar(name: str, value: float, scale: float) -> Html:
    share = min(1.0, max(0.0, value / scale)) if value == value else 0.0
    return el(
        "div",
        el("span", name, cls="bar-name"),
        el("span", el("span", style=f"width:{100 * share:.1f}%"), cls="bar", aria_hidden="true"),
        el("span", f"{value:.2f}" if value == value else "\u2013", cls="bar-value"),
        cls="bar-row",
    )


def _embedded(results: Results, example: Example) -> Optional[str]:
    """The PNG as a data URL; None where it is missing, no PNG, or outside the folder."""
    path = results.folder / example.file
    try:
        path.resolve().relative_to(results.folder.resolve())
        content = path.read_bytes()
    except (OSError, ValueError):
        return None
    light = _light(content)
    return None if light is None else "data:image/png;base64," + b64encode(light).decode("ascii")


def _light(content: bytes) -> Optional[bytes]:
    """The PNG, made small where it is heavy: a page full of photographs is to stay quick."""
    from PIL import Image

    if not content.startswith(b"\x89PNG"):
        return None
    if len(content) <= _LIGHT:
        return content
    out = io.BytesIO()
    try:
        with Image.open(io.BytesIO(content)) as image:
            small = image.convert("RGB")
            small.thumbnail((_SIDE, _SIDE))
            small.save(out, "PNG")
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
    return out.getvalue()
