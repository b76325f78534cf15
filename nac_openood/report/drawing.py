"""Matplotlib figures as small, reproducible SVG that takes its colors from the page."""

from __future__ import annotations

import importlib.util
import io
import re
from typing import Any, Sequence

from markupsafe import Markup

from nac_openood.errors import NACError
from nac_openood.report.blocks import Picture

# Okabe and Ito's palette, which is distinguishable with any color vision. Lines and markers also
# differ in shape.
OUR_COLOR, ID_COLOR, OOD_COLOR = "#0072b2", "#009e73", "#d55e00"
INK, FAINT, GRID, PAPER, CALM = "#1b2430", "#5c6773", "#e4e8ed", "#fefefe", "#a9b4c0"
OTHERS = ("#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("-", (0, (5, 2)), (0, (1.2, 1.4)), (0, (6, 2, 1.2, 2)), (0, (3, 1.5)))
MARKERS = ("o", "s", "^", "v", "P", "X", "*", "h")

#: Colors that the page sets, so that ink is light on a dark page.
_VARIABLES = dict(
    zip(
        (INK, FAINT, GRID, PAPER, CALM, OUR_COLOR, ID_COLOR, OOD_COLOR),
        ("--ink", "--faint", "--grid", "--paper", "--calm", "--ours", "--id", "--ood"),
    )
)
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: selectable, and in the page's own font
    "text.parse_math": False,  # names may contain "$"
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
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    **{f"{axis}.color": FAINT for axis in ("xtick", "ytick")},
    **{f"{axis}.labelcolor": INK for axis in ("xtick", "ytick")},
    **{f"{axis}.labelsize": 9 for axis in ("xtick", "ytick")},
}


def svg(picture: Picture, key: str) -> Markup:
    """Draw a picture as inline SVG, without what a page does not need.

    Args:
        picture: what to draw.
        key: unique on the page, which makes the ids inside the SVG unique.

    Raises:
        NACError: if matplotlib is not installed.
    """
    text = _drawn(picture, key)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.S)
    text = text.replace("xlink:href", "href")
    # ids that nothing refers to are left out
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    # a hundredth of a pixel is enough for coordinates; numbers that people read stay as they are
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), text)
    for color, variable in _VARIABLES.items():
        text = text.replace(color, f"var({variable})")
    text = re.sub(r">\s+<", "><", text)
    width, height = (f"{side:g}" for side in picture.size)
    head = Markup(
        '<svg class="plot" role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}" height="{}">'
    ).format(picture.alt, width, height, width, height)
    return head + Markup(text[text.index(">") + 1 :].strip())


def svg_file(picture: Picture) -> str:
    """Draw a picture as an SVG file of its own, on white paper.

    Raises:
        NACError: if matplotlib is not installed.
    """
    return _drawn(picture, picture.title, paper="white")


def _drawn(picture: Picture, key: str, paper: str = "none") -> str:
    """The SVG as matplotlib writes it."""
    check_matplotlib()
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the user's matplotlibrc must not change the page
        # ids are hashes with the salt
        own: Any = {"svg.hashsalt": key, "figure.facecolor": paper}
        matplotlib.rcParams.update({**_STYLE, **own})
        figure = blank((picture.size[0] / 72, picture.size[1] / 72), dpi=72)
        picture.paint(figure)
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def check_matplotlib() -> None:
    """Raise an error that says what to install if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise NACError(
            "drawing needs matplotlib, which is not installed: pip install 'nac-openood[plot]'."
        )


def blank(inches: tuple[float, float], dpi: int) -> Any:
    """An empty matplotlib figure, made without touching global state.

    Raises:
        NACError: if matplotlib is not installed.
    """
    check_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=inches, dpi=dpi)
    FigureCanvasAgg(figure)
    return figure


def name_rows(axis: Any, names: Sequence[str], ours: Sequence[str] = ()) -> None:
    """Label horizontal rows from top to bottom; the names in `ours` are bold."""
    axis.set_yticks(range(len(names)), names)
    for label, name in zip(axis.get_yticklabels(), names):
        if name in ours:
            label.set(weight="bold", color=OUR_COLOR)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.set_axisbelow(True)


def log_axis(axis: Any) -> None:
    """Make the x axis logarithmic, with decimal numbers: 0.1, 1, 10."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def write_value(axis: Any, x: float, y: float, text: str, weight: str = "normal") -> None:
    """Write a number to the right of a point."""
    axis.annotate(
        text, (x, y), (6, 0), textcoords="offset points", va="center", fontsize=9, weight=weight,
        annotation_clip=False,
    )  # fmt: skip
