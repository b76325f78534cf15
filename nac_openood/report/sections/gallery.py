"""The samples that NAC finds hardest."""

from __future__ import annotations

from typing import Optional

from nac_openood.benchmark.run.results import HardSample, Results
from nac_openood.report.blocks import Card, Cards, Section
from nac_openood.report.words import NOTHING, set_title
from nac_openood.sources.images import png_url

_KINDS = {
    "id-lowest": "In-distribution samples with the lowest NAC scores",
    "ood-highest": "OOD samples with the highest NAC scores",
}
_PNG = b"\x89PNG"


def gallery(results: Results) -> Optional[Section]:
    """A card for each sample, with its picture if there is one; None without samples."""
    scale = max([1.0, *(v for e in results.gallery for v in e.layers.values() if v == v)])
    blocks = []
    for kind, title in _KINDS.items():
        cards = [_card(results, e, scale) for e in results.gallery if e.kind == kind]
        if cards:
            blocks.append(Cards(title, cards))
    return Section("gallery", "Hardest samples", blocks) if blocks else None


def _card(results: Results, example: HardSample, scale: float) -> Card:
    bars = []
    for name, value in example.layers.items():
        known = value == value
        share = min(1.0, max(0.0, value / scale)) if known else 0.0
        bars.append((name, f"{value:.2f}" if known else NOTHING, round(100 * share, 1)))
    title, score = set_title(example.dataset), f"{example.score:.3f}"
    return Card(_embedded(results, example), title, example.name, score, bars)


def _embedded(results: Results, example: HardSample) -> Optional[str]:
    """The PNG as a data URL; None if there is none, or it is damaged or outside the folder."""
    if example.file is None:
        return None
    path = results.folder / example.file
    try:
        path.resolve().relative_to(results.folder.resolve())
        content = path.read_bytes()
    except (OSError, ValueError):
        return None
    return png_url(content) if content.startswith(_PNG) else None
