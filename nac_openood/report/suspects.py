"""A page with the most suspicious images of a batch job, and why they are suspicious."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence

from nac_openood.__about__ import __version__
from nac_openood.detector.outcomes import Explanation
from nac_openood.report.blocks import Bullets, Card, Cards, Document, Headline, Section
from nac_openood.report.page import render
from nac_openood.report.words import count
from nac_openood.sources.image_paths import Prediction


@dataclass(frozen=True)
class Suspect:
    """An image, what the detector says about it, and why.

    Args:
        judged: the image, and what the detector says.
        image: a small picture as a data URL, if there is one.
        why: what the score is made of.
    """

    judged: Prediction
    image: Optional[str]
    why: Explanation


def suspects_page(
    suspects: Sequence[Suspect], *, arch: str, n_images: int, n_out: int, alpha: float
) -> str:
    """The page as HTML, in one file that loads nothing else.

    Args:
        suspects: most suspicious first.
        arch: name of the network.
        n_images: how many images were judged.
        n_out: how many of them are out-of-distribution.
        alpha: p-values at or below it are.
    """
    verdict = f"{n_out} of {count(n_images, 'image')} are out-of-distribution (p <= {alpha:g})."
    facts = [
        f"{count(len(suspects), 'image')} with the lowest p-values",
        f"about {alpha:.1%} of in-distribution images would be rejected by mistake",
    ]
    head = Headline(
        "Most suspicious images", arch, verdict, facts, [], [], topic="nac-openood score"
    )
    return render(Document(head, [_gallery(suspects), _reasons(suspects)], __version__))


def _gallery(suspects: Sequence[Suspect]) -> Section:
    text = (
        "The numbers are what each part of the network adds to the score: the lower, the more "
        "suspicious. A bar compares a part that lowers the score with the one that lowers it most."
    )
    cards = [_card(suspect) for suspect in suspects]
    return Section("gallery", "Images", [text, Cards("Lowest p-values first", cards)])


def _card(suspect: Suspect) -> Card:
    said, parts = suspect.judged, suspect.why.contributions
    least = min(parts.values(), default=0.0)
    bars = [
        (
            name,
            f"{added:.1f}" if least < 0 else f"{added:.2f}",
            round(100 * max(0.0, added / least), 1) if least < 0 else 0.0,
        )
        for name, added in parts.items()
    ]
    answer = f"{said.label}, {said.confidence:.0%} sure"
    return Card(suspect.image, answer, said.path, f"p = {said.p_value:.2g}", bars)


def _reasons(suspects: Sequence[Suspect]) -> Section:
    """The least covered neurons of each image, for those who look into the network."""
    lines = [
        f"{suspect.judged.path}: "
        + "; ".join(f"{n} {', '.join(map(str, found))}" for n, found in suspect.why.neurons.items())
        for suspect in suspects
        if suspect.why.neurons
    ]
    text = "The neurons of each layer whose activations were seen least often in training:"
    return Section("neurons", "Least covered neurons", [text, Bullets(lines)])
