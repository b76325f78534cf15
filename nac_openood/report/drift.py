"""Whether data, as a whole, is like the calibration data: a report, and evidence over time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Sequence

import numpy as np

from nac_openood import tables
from nac_openood.detector.drift import Drift, DriftMonitor
from nac_openood.report.formatting import count
from nac_openood.report.render import Content, Document, Figures, Section
from nac_openood.sources.images import ImageError, png_url, rgb_image, small_png
from nac_openood.tables import Column, Density, Example, Table, text_columns

_BINS, _CLASSES, _SAMPLES = 20, 20, 24  # of the histogram of p-values; shown at most


def drift_report(
    found: Drift,
    *,
    class_names: Sequence[str] = (),
    samples: Sequence[tuple[str, float]] = (),
    alpha: float = 0.01,
    arch: str = "",
    command: str = "",
) -> Document:
    """A report for `render_page` and `render_markdown`; figures are not drawn yet.

    Args:
        found: of a dataset.
        class_names: names of the classes; without them, their numbers are shown.
        samples: names or paths of samples, and their p-values; the lowest are shown.
        alpha: a p-value at or below it means drift.
        arch: name of the network.
        command: the command that repeats the report.
    """
    n = len(found.scores)
    verdict = f"No sign of drift: these {n:,} samples do not differ detectably"
    if found.p_value <= alpha:
        verdict = f"Drift: these {n:,} samples differ"
    unusual = f"{np.mean(found.p_values <= alpha):.1%} of the samples with p <= {alpha:g}"
    facts = [count(n, "sample"), count(len(found.reference), "calibration sample")]
    sections = [
        Section("scores", "Scores", [_distributions(found)]),
        Section("tests", "Tests", _tests(found)),
        Section("classes", "Predicted classes", _classes(found.classes, class_names)),
        Section("samples", "Samples with the lowest p-values", _samples(samples)),
    ]
    return Document(
        "Is this data like the calibration data?", arch,
        f"{verdict} from the calibration data (p\u00a0=\u00a0{found.p_value:.2g}).", sections,
        [*facts, f"{unusual} ({alpha:.1%} expected)"], topic="Drift", command=command,
    )  # fmt: skip


def _distributions(found: Drift) -> Figures:
    """The scores of both, and the p-values beside uniform ones."""
    panel = Density.of(*(each[np.isfinite(each)] for each in (found.reference, found.scores)))
    label, names = "score (higher = more in-distribution)", ("calibration data", "this data")
    both = tables.Densities("scores", "Scores", label, [""], [("", [panel])], *names)
    counts, edges = np.histogram(found.p_values, _BINS, (0, 1))
    bars = Density(edges.tolist(), (counts / counts.sum()).tolist(), [1 / _BINS] * _BINS)
    names = "this data", "without drift"
    uniform = tables.Densities("p_values", "p-values", "p-value", [""], [("", [bars])], *names)
    return Figures(
        [both, uniform],
        "Without drift, the two distributions of scores are alike and p-values are uniform: all "
        "bars are about as high as the dashed line. A tall bar on the left means that many samples "
        "are unusual; one on the right, that many score higher than most calibration samples.",
    )


def _tests(found: Drift) -> list[Content]:
    value, low, high = found.auroc
    numbers = {
        "overall p-value": found.p_value,
        "p-value of the scores (permutation test)": found.p_scores,
        "p-value of the predicted classes (permutation test)": found.p_classes,
    }
    rows = [[name, f"{p:.2g}"] for name, p in numbers.items() if p is not None]
    shown = f"{value:.3f} (99 % interval {low:.3f} to {high:.3f})"
    rows.append(["AUROC of calibration samples against this data", shown])
    text = (
        "A p-value is the probability of a difference at least as large as this one without drift. "
        "The AUROC says how large the difference is: it is the probability that a calibration "
        "sample scores higher than a sample of this data, 0.5 without drift."
    )
    return [text, Table("", [*text_columns("Quantity"), Column("Value")], rows)]


def _classes(classes: np.ndarray, names: Sequence[str]) -> list[Content]:
    """Shares of the predicted classes, the largest changes first."""
    if not classes.size:
        return []
    before, after = 100 * classes / classes.sum(axis=1, keepdims=True)
    order = np.argsort(-np.abs(after - before), kind="stable")[:_CLASSES]
    rows = [
        [names[i] if names else str(i), before[i], after[i], f"{after[i] - before[i]:+.2f}"]
        for i in order.tolist()
    ]
    text = f"Percent of the samples; the largest changes first, {_CLASSES} classes at most."
    columns = map(Column, ("Calibration data", "This data", "Change"))
    return [text, Table("", [*text_columns("Class"), *columns], rows)]


def _samples(samples: Sequence[tuple[str, float]]) -> list[Content]:
    """The lowest p-values, with pictures of those that are image files."""
    lowest = sorted(samples, key=lambda sample: sample[1])[:_SAMPLES]
    cards = []
    for name, p_value in lowest:
        try:
            image = png_url(small_png(rgb_image(Path(name))))
        except (ImageError, OSError, ValueError):  # no image file, or it was removed
            continue
        cards.append(Example(Path(name).parent.name, name, {}, image, f"p = {p_value:.2g}"))
    rows = [[name, f"{p_value:.2g}"] for name, p_value in lowest]
    table = Table("Names and p-values", [*text_columns("Sample"), Column("p-value")], rows)
    pictures: list[Content] = [tables.Examples("Pictures", cards)] if cards else []
    return [*pictures, table] if rows else []


def evidence_figure(monitor: DriftMonitor) -> tables.Lines:
    """Evidence of drift over a stream, with the alarm threshold and the moment of the alarm."""
    points = monitor.history or [(0, monitor.log10_evidence)]
    alarm, threshold = monitor.alarm_at, -math.log10(monitor.alpha)
    title = "No alarm" if alarm is None else f"Alarm at input {alarm:,}"
    limit = tables.Series("alarm", [(at, threshold) for at, _ in points], printed=True)
    below = "inputs" if alarm is None else f"inputs (dotted: {title[0].lower()}{title[1:]})"
    label = "evidence of drift, powers of 10"
    lines = [tables.Series("evidence", points), limit]
    return tables.Lines("evidence", title, below, label, lines, mark=alarm)
