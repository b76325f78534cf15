"""`report.html`: one page that needs nothing but itself."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

from nac_openood.compare.results import Results
from nac_openood.report.markup import Html, el, join
from nac_openood.report.order import standings
from nac_openood.report.sections.about import about, against_paper
from nac_openood.report.sections.gallery import gallery
from nac_openood.report.sections.headline import headline
from nac_openood.report.sections.layers import layers
from nac_openood.report.sections.leaderboard import by_set, leaderboard
from nac_openood.report.sections.pictures import bars, distributions, rocs, times
from nac_openood.report.sections.settings import settings_section
from nac_openood.report.words import set_title

_ASSETS = Path(__file__).parent / "assets"


def page(results: Results) -> str:
    """The whole document.

    Raises:
        NACError: where matplotlib is not installed.
    """
    order = standings(results)
    parts = [
        leaderboard(results, order),
        bars(results, order),
        by_set(results, order),
        distributions(results, order),
        rocs(results, order),
        times(results, order),
        layers(results),
        gallery(results),
        settings_section(results, order),
        against_paper(results),
        about(results),
    ]
    shown = [part for part in parts if part is not None]
    title = f"{set_title(results.id_name)}, {results.arch}: how NAC compares"
    return Template(_asset("page.html")).substitute(
        title=join(title),
        style=_asset("style.css"),
        script=_asset("page.js"),
        header=headline(results, order),
        contents=_contents(shown),
        sections="\n".join(shown),
        footer=el("footer", f"Made by nac_openood {results.versions.get('nac_openood', '')}"),
    )


def _contents(parts: list[Html]) -> Html:
    """Links to the sections, read off their headings."""
    found = [re.search(r'<h2 id="(.*?)-title">(.*?)</h2>', part) for part in parts]
    links = [el("a", Html(f[2]), href=f"#{f[1]}") for f in found if f is not None]
    return el("nav", *links, aria_label="Contents")


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")
