"""Matplotlib figures as small, equal-every-time SVG that takes its colors from the page."""

from __future__ import annotations

import importlib.util
import io
import re
from html import escape
from typing import Any, Callable

from nac_openood.errors import NACError
from nac_openood.report.markup import Html

# Okabe and Ito's palette, told apart with any kind of color vision. Lines and markers also differ
# in shape.
NAC_COLOR, ID_COLOR, OOD_COLOR = "#0072b2", "#009e73", "#d55e00"
INK, FAINT, GRID, PAPER, CALM = "#1b2430", "#5c6773", "#e4e8ed", "#fefefe", "#a9b4c0"
OTHERS = ("#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("-", (0, (5, 2)), (0, (1.2, 1.4)), (0, (6, 2, 1.2, 2)), (0, (3, 1.5)))
MARKERS = ("o", "s", "^", "v", "P", "X", "*", "h")

#: Colors that the page sets, so that a dark page has light ink.
_VARIABLES = {
    INK: "--ink",
    FAINT: "--faint",
    GRID: "--grid",
    PAPER: "--paper",
    CALM: "--calm",
    NAC_COLOR: "--nac",
    ID_COLOR: "--id",
    OOD_COLOR: "--ood",
}
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: selectable, and in the page's own font
    "svg.hashsalt": "nac_openood",
    "text.parse_math": False,  # a "$" in a name is a "$"
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.labelsize": 9.5,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.facecolor": "none",
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.facecolor": "none",
    "path.simplify": True,
    "hatch.linewidth": 0.6,
}


def svg(key: str, alt: str, size: tuple[float, float], draw: Callable[[Any], None]) -> Html:
    """An inline SVG.

    Args:
        key: unique on the page; ids inside the picture begin with it.
        alt: what the picture shows, in words with numbers.
        size: width and height in CSS pixels.
        draw: fills the (empty) matplotlib figure it is given.

    Raises:
        NACError: where matplotlib is not installed.
    """
    check_matplotlib()
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # somebody's matplotlibrc must not change the page
        matplotlib.rcParams.update(_STYLE)
        figure = blank((size[0] / 72, size[1] / 72), dpi=72)
        draw(figure)
        figure.savefig(out, format="svg", metadata={"Date": None})
    return Html(_cleaned(out.getvalue(), key, alt, size))


def check_matplotlib() -> None:
    """Say what to install where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise NACError(
            "drawing needs matplotlib, which is not installed: pip install 'nac-openood[plot]'."
        )


def blank(inches: tuple[float, float], dpi: int) -> Any:
    """An empty figure of matplotlib's that touches no global state.

    Raises:
        NACError: where matplotlib is not installed.
    """
    check_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=inches, dpi=dpi)
    FigureCanvasAgg(figure)  # measures text, which placing labels needs
    return figure


def _cleaned(text: str, key: str, alt: str, size: tuple[float, float]) -> str:
    """Without what a page does not need, with ids that are unique on it."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.S)
    text = text.replace("xlink:href", "href")
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    text = re.sub(
        r' id="([^"]*)"',
        lambda found: f' id="{key}-{found[1]}"' if found[1] in used else "",
        text,
    )
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{key}-", text)
    text = re.sub(r"(\d\.\d\d)\d+", r"\1", text)  # a hundredth of a pixel is enough
    for color, variable in _VARIABLES.items():
        text = text.replace(color, f"var({variable})")
    text = re.sub(r">\s+<", "><", text)
    head = (
        f'<svg class="plot" role="img" aria-label="{escape(alt)}" '
        f'viewBox="0 0 {size[0]:g} {size[1]:g}" width="{size[0]:g}" height="{size[1]:g}">'
    )
    return head + text[text.index(">") + 1 :].strip()
