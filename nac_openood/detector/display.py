"""How results look when printed, and in notebooks: text, and small pieces of HTML."""

from __future__ import annotations

import io
from base64 import b64encode
from html import escape
from typing import Any, Iterable, Mapping, Optional, Sequence

import numpy as np
from torch import Tensor

#: How many samples and neurons are shown at most.
MOST = 10
_SIDE = 64
_LOW, _HIGH, _LINE = "#d55e00", "#0072b2", "rgba(128,128,128,.3)"


def picture(image: Tensor) -> str:
    """An image of any normalization, `[channels, height, width]`, as HTML."""
    from PIL import Image

    pixels = image.float().nan_to_num().permute(1, 2, 0).numpy()
    low, high = float(pixels.min()), float(pixels.max())
    scaled = np.rint(255 * (pixels - low) / max(high - low, 1e-12)).astype(np.uint8)
    picture = Image.fromarray(scaled.squeeze(2) if scaled.shape[2] == 1 else scaled)
    picture.thumbnail((_SIDE, _SIDE))
    out = io.BytesIO()
    picture.save(out, "PNG")
    url = f"data:image/png;base64,{b64encode(out.getvalue()).decode()}"
    return f'<img src="{url}" height="{_SIDE}" style="image-rendering:pixelated;margin:0" alt="">'


def share_text(share: float) -> str:
    """A share in percent, with enough digits to tell it from 0 and 100 %."""
    digits = next((d for d in (1, 2, 3, 4) if 0 < round(100 * share, d) < 100), 1)
    return f"{100 * share:.{digits}f} %"


def text_rows(rows: Sequence[Sequence[Any]]) -> str:
    """Rows as aligned text: the first and the last column to the left, the others to the right."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows)]
    lines = []
    for first, *middle, last in rows:
        cells = [str(cell).rjust(width) for cell, width in zip(middle, widths[1:])]
        lines.append("  ".join(["", str(first).ljust(widths[0]), *cells, str(last)]).rstrip())
    return "\n".join(lines)


def described(title: str, lines: Mapping[str, Optional[str]]) -> str:
    """A title, and a line for each name that has a text."""
    return "\n".join([title, *(f"  {name:<12}{text}" for name, text in lines.items() if text)])


def html_table(heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    """A table of cells that are HTML already, below a caption."""
    style = f'style="text-align:left;padding:4px 12px;border-bottom:1px solid {_LINE}"'
    head = "".join(f"<th {style}>{escape(name)}</th>" for name in heads)
    body = "".join(
        f"<tr>{''.join(f'<td {style}>{cell}</td>' for cell in row)}</tr>" for row in rows
    )
    return (
        f'<div><p style="margin:4px 0">{escape(caption)}</p>'
        f'<table style="border-collapse:collapse">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def badge(out: bool) -> str:
    """Whether a sample is out-of-distribution, as HTML."""
    color, text = (_LOW, "out") if out else ("inherit", "in")
    return f'<b style="color:{color}">{text}</b>'


def colored_bar(value: float, largest: float) -> str:
    """A bar as long as a number is large, relative to the largest, as HTML."""
    share, color = 100 * min(1.0, abs(value) / largest), _LOW if value < 0 else _HIGH
    inside = f"width:{share:.0f}%;height:10px;background:{color};border-radius:3px"
    return f'<div style="width:160px"><div style="{inside}"></div></div>'
