"""Samples with pictures: confident mistakes, the hardest ones, the most suspicious ones."""

from __future__ import annotations

from typing import Any, Iterator, Optional, Sequence

from nac_openood.benchmark.methods.table import METHODS, NAC
from nac_openood.benchmark.run.results import ConfidentMistakes, HardSample, Results
from nac_openood.detector.outcomes import Explanation
from nac_openood.report import formatting as fmt
from nac_openood.report.methods import Ranked
from nac_openood.report.render import Content, Document, Section, render_page
from nac_openood.sources.fitted import Prediction
from nac_openood.sources.images import png_url
from nac_openood.tables import NOTHING, Example, Examples

_KINDS = {
    "id-lowest": "In-distribution samples with the lowest scores",
    "ood-highest": "OOD samples with the highest scores",
}
_NAC = "Bars show the score of each layer: how well its neurons are covered."
_PARTS = (
    "Bars show, for each part of the score, the share of the in-distribution test samples with "
    "values as low."
)


def hardest_samples(ranked: Ranked) -> Section:
    """The samples that our methods find hardest, with pictures; empty without samples."""
    blocks: list[Content] = []
    for method in dict.fromkeys(e.method for e in ranked.results.gallery):
        own = [e for e in ranked.results.gallery if e.method == method]
        title = METHODS[method].title if method in METHODS else method
        what = _NAC if method == NAC else _PARTS
        blocks.append(Section("", title, [what, *_groups(ranked.results, own)]))
    return Section("gallery", "Hardest samples", blocks)


def _groups(results: Results, samples: Sequence[HardSample]) -> Iterator[Examples]:
    """The samples by kind, with bars relative to the highest value."""
    scale = max([1.0, *(v for e in samples for v in e.layers.values() if v == v)])
    found: dict[str, list[Example]] = {}
    for e in samples:
        layers = {name.replace(" (distance)", " dist."): v for name, v in e.layers.items()}
        bars = {n: 100 * min(1.0, max(0.0, v / scale)) for n, v in layers.items()}
        labels = {n: f"{v:.2f}" if v == v else NOTHING for n, v in layers.items()}
        image, score = picture_in(results, e.file), f"{e.score:.3f}"
        shown = Example(e.dataset, e.name, bars, image, score, labels)
        found.setdefault(e.kind, []).append(shown)
    yield from (Examples(title, found[kind]) for kind, title in _KINDS.items() if kind in found)


def picture_in(results: Results, file: Optional[str]) -> Optional[str]:
    """A PNG as a data URL; None if there is none, or it is damaged or outside the folder."""
    if file is None:
        return None
    path = results.folder / file
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
    fdr: Optional[float] = None,
) -> str:
    """The page of the most suspicious images, as one HTML file that loads nothing else.

    Args:
        suspects: the prediction for an image, its picture as a data URL, and an explanation; the
            most suspicious first.
        arch: name of the network.
        n_images: how many images were scored.
        n_out: how many of them are out-of-distribution.
        alpha: images with p-values at or below it are out-of-distribution.
        fdr: the false discovery rate they were selected by instead, if any.
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
    how = f"p <= {alpha:g}" if fdr is None else f"selected with a false discovery rate of {fdr:g}"
    verdict = f"{n_out} of {fmt.count(n_images, 'image')} are out-of-distribution ({how})."
    shown = f"{fmt.count(len(suspects), 'image')} with the lowest p-values"
    mistakes = f"about {alpha:.1%} of in-distribution images would be rejected by mistake"
    if fdr is not None:
        mistakes = f"on average, at most {fdr:.1%} of selected images are in-distribution"
    title, topic = "Most suspicious images", "nac-openood score"
    return render_page(Document(title, arch, verdict, sections, [shown, mistakes], topic=topic))


def story(results: Results) -> dict[str, Any]:
    """What the page opens with; empty if the network makes no confident mistakes."""
    found = results.confident
    if found is None:
        return {}
    note = (
        f"p is the share of samples with a {found.method} score as low, among {found.n_known:,} "
        f"test samples and the one in question. Of samples like the training data, at most "
        f"{100 * found.level:.0f} % have p \u2264 {found.level:g}. Each mistake shown is one of "
        "the ten most confident of its dataset."
    )
    seen, caught = sentences(results, found)
    title, classes = fmt.set_title(results.id_name), fmt.count(found.n_classes, "class", "classes")
    return {
        "seen": seen, "caught": caught, "note": note, "found": found, "classes": classes,
        "title": fmt.capital(title),
        "pictures": lambda files: list(filter(None, (picture_in(results, f) for f in files))),
    }  # fmt: skip


def sentences(results: Results, found: ConfidentMistakes) -> tuple[str, str]:
    """What the network learned, was shown and was wrong about, and how much of that is caught."""
    n, sure, caught = (sum(counts) for counts in zip(*found.sets.values()))
    name, accuracy = fmt.set_title(results.id_name), results.runs[0].accuracy
    right = "" if accuracy is None else f" and classifies {accuracy:.1f} % of new samples correctly"
    return (
        f"A network was trained on {name}{right}. Then it was shown {n:,} samples of none of its "
        f"{found.n_classes} classes. Any class it predicts is wrong, yet for {sure:,} of them it "
        f"is at least {100 * found.sure:.0f} % sure.",
        f"An alarm at p \u2264 {found.level:g} with {found.method} catches {caught:,} of these "
        f"{sure:,} confident mistakes ({100 * caught / sure:.0f} %).",
    )
