"""Pictures of samples: the hardest of a comparison, the most suspicious of a batch job."""

from __future__ import annotations

from typing import Optional, Sequence

from nac_openood.benchmark.run.results import HardSample, Results
from nac_openood.detector.outcomes import Explanation
from nac_openood.report.formatting import count
from nac_openood.report.methods import Ranked
from nac_openood.report.render import Document, Section, render_page
from nac_openood.sources.fitted import Prediction
from nac_openood.sources.images import png_url
from nac_openood.tables import NOTHING, Example, Examples

_KINDS = {
    "id-lowest": "In-distribution samples with the lowest NAC scores",
    "ood-highest": "OOD samples with the highest NAC scores",
}


def hardest_samples(ranked: Ranked) -> Section:
    """The samples that NAC finds hardest, with their pictures; empty without samples."""
    results = ranked.results
    scale = max([1.0, *(v for e in results.gallery for v in e.layers.values() if v == v)])
    found: dict[str, list[Example]] = {}
    for e in results.gallery:
        bars = {n: 100 * min(1.0, max(0.0, v / scale)) for n, v in e.layers.items()}
        labels = {n: f"{v:.2f}" if v == v else NOTHING for n, v in e.layers.items()}
        shown = Example(e.dataset, e.name, bars, _picture(results, e), f"{e.score:.3f}", labels)
        found.setdefault(e.kind, []).append(shown)
    blocks = [Examples(title, found[kind]) for kind, title in _KINDS.items() if kind in found]
    return Section("gallery", "Hardest samples", blocks)


def _picture(results: Results, example: HardSample) -> Optional[str]:
    """The PNG as a data URL; None if there is none, or it is damaged or outside the folder."""
    if example.file is None:
        return None
    path = results.folder / example.file
    try:
        path.resolve().relative_to(results.folder.resolve())
        content = path.read_bytes()
    except (OSError, ValueError):
        return None
    return png_url(content) if content.startswith(b"\x89PNG") else None


def suspects_page(
    suspects: Sequence[tuple[Prediction, Optional[str], Explanation]],
    *,
    arch: str,
    n_images: int,
    n_out: int,
    alpha: float,
) -> str:
    """The page of the most suspicious images, as one HTML file that loads nothing else.

    Args:
        suspects: the prediction for an image, its picture as a data URL, and an explanation; the
            most suspicious first.
        arch: name of the network.
        n_images: how many images were scored.
        n_out: how many of them are out-of-distribution.
        alpha: images with p-values at or below it are out-of-distribution.
    """
    text = (
        "Each number is what a part of the network adds to the score; lower is more suspicious. "
        "Bars are relative to the part that lowers the score most."
    )
    least_covered = "The neurons of each layer whose activations were seen least often in training:"
    samples, neurons = [], []
    for prediction, image, why in suspects:
        least = min(why.contributions.values(), default=0.0)
        low = least < 0
        bars = {n: 100 * max(0.0, v / least) if low else 0.0 for n, v in why.contributions.items()}
        labels = {n: f"{v:.1f}" if low else f"{v:.2f}" for n, v in why.contributions.items()}
        answer = f"{prediction.label}, {prediction.confidence:.0%} sure"
        p_value = f"p = {prediction.p_value:.2g}"
        samples.append(Example(answer, prediction.path, bars, image, p_value, labels))
        layers = [f"{n} {', '.join(map(str, found))}" for n, found in why.neurons.items()]
        neurons += [f"{prediction.path}: {'; '.join(layers)}"] if layers else []
    sections = [
        Section("gallery", "Images", [text, Examples("Lowest p-values first", samples)]),
        Section("neurons", "Least covered neurons", [least_covered, neurons]),
    ]
    verdict = f"{n_out} of {count(n_images, 'image')} are out-of-distribution (p <= {alpha:g})."
    shown = f"{count(len(suspects), 'image')} with the lowest p-values"
    mistakes = f"about {alpha:.1%} of in-distribution images would be rejected by mistake"
    title, topic = "Most suspicious images", "nac-openood score"
    return render_page(Document(title, arch, verdict, sections, [shown, mistakes], topic=topic))
