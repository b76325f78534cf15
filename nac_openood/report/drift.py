"""Whether data, as a whole, is like the calibration data: a report, and evidence over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

import numpy as np

from nac_openood import tables
from nac_openood.report.formatting import count
from nac_openood.report.render import Content, Document, Figures, Section
from nac_openood.sources.images import ImageError, png_url, rgb_image, small_png
from nac_openood.tables import Column, Density, Example, Table, text_columns

_BINS, _CLASSES, _SAMPLES = 20, 20, 24  # of the histogram of p-values; shown at most
#: The numbers of the summary, with their names in the table.
_NUMBERS = {
    "p_value": "overall p-value",
    "p_scores": "p-value of the scores (permutation test)",
    "p_classes": "p-value of the predicted classes (permutation test)",
    "statistic": "test statistic of the scores",
}


def drift_report(
    scores_reference: np.ndarray,
    scores_data: np.ndarray,
    p_values: np.ndarray,
    summary: Mapping[str, Any],
    *,
    classes: Optional[tuple[Sequence[int], Sequence[int]]] = None,
    class_names: Sequence[str] = (),
    samples: Sequence[tuple[str, float]] = (),
    alpha: float = 0.01,
    arch: str = "",
    command: str = "",
) -> Document:
    """A report for `render_page` and `render_markdown`; figures are not drawn yet.

    Args:
        scores_reference: scores of the calibration samples, `[samples]`.
        scores_data: scores of the data, `[samples]`.
        p_values: of the data, `[samples]`.
        summary: `p_value`; where known also `p_scores`, `p_classes`, `statistic`, and `auroc`: the
            AUROC of calibration samples against the data with the ends of its 99 % interval.
        classes: how often each class was predicted for the calibration samples and for the data;
            None if that is not known.
        class_names: names of the classes; without them, their numbers are shown.
        samples: names or paths of samples, and their p-values; the lowest are shown.
        alpha: a p-value at or below it means drift.
        arch: name of the network.
        command: the command that repeats the report.
    """
    n = len(scores_data)
    verdict = f"No sign of drift: these {n:,} samples do not differ detectably"
    if summary["p_value"] <= alpha:
        verdict = f"Drift: these {n:,} samples differ"
    unusual = f"{np.mean(np.asarray(p_values) <= alpha):.1%} of the samples with p <= {alpha:g}"
    facts = [count(n, "sample"), count(len(scores_reference), "calibration sample")]
    sections = [
        Section("scores", "Scores", [_distributions(scores_reference, scores_data, p_values)]),
        Section("tests", "Tests", _tests(summary)),
        Section("classes", "Predicted classes", _classes(classes, class_names)),
        Section("samples", "Samples with the lowest p-values", _samples(samples)),
    ]
    return Document(
        "Is this data like the calibration data?", arch,
        f"{verdict} from the calibration data (p\u00a0=\u00a0{summary['p_value']:.2g}).", sections,
        [*facts, f"{unusual} ({alpha:.1%} expected)"], topic="Drift", command=command,
    )  # fmt: skip


def _distributions(reference: np.ndarray, data: np.ndarray, p_values: np.ndarray) -> Figures:
    """The scores of both, and the p-values beside uniform ones."""
    scores = [np.asarray(each, float) for each in (reference, data)]
    panel = Density.of(*(each[np.isfinite(each)] for each in scores))
    label, names = "score (higher = more in-distribution)", ("calibration data", "this data")
    both = tables.Densities("scores", "Scores", label, [""], [("", [panel])], *names)
    counts, edges = np.histogram(p_values, _BINS, (0, 1))
    bars = Density(edges.tolist(), (counts / counts.sum()).tolist(), [1 / _BINS] * _BINS)
    names = "this data", "without drift"
    uniform = tables.Densities("p_values", "p-values", "p-value", [""], [("", [bars])], *names)
    return Figures(
        [both, uniform],
        "Without drift, the two distributions of scores are alike and p-values are uniform: all "
        "bars are about as high as the dashed line. A tall bar on the left means that many samples "
        "are unusual; one on the right, that many score higher than most calibration samples.",
    )


def _tests(summary: Mapping[str, Any]) -> list[Content]:
    known = [(name, key) for key, name in _NUMBERS.items() if summary.get(key) is not None]
    rows = [[name, f"{summary[key]:.2g}"] for name, key in known]
    if summary.get("auroc") is not None:
        value, low, high = summary["auroc"]
        shown = f"{value:.3f} (99 % interval {low:.3f} to {high:.3f})"
        rows.append(["AUROC of calibration samples against this data", shown])
    text = (
        "A p-value is the probability of a difference at least as large as this one without drift. "
        "The AUROC says how large the difference is: it is the probability that a calibration "
        "sample scores higher than a sample of this data, 0.5 without drift."
    )
    return [text, Table("", [*text_columns("Quantity"), Column("Value")], rows)]


def _classes(
    classes: Optional[tuple[Sequence[int], Sequence[int]]], names: Sequence[str]
) -> list[Content]:
    """Shares of the predicted classes, the largest changes first."""
    if classes is None or not np.size(classes):
        return []
    before, after = (100 * np.asarray(each) / max(1, np.sum(each)) for each in classes)
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


def evidence_figure(
    evidence: Sequence[float],
    threshold: float,
    inputs: Optional[Sequence[int]] = None,
    alarm: Optional[int] = None,
) -> tables.Lines:
    """Evidence of drift over a stream, with the alarm threshold and the moment of the alarm.

    Args:
        evidence: log10 of a test martingale after each of some inputs, `[points]`.
        threshold: log10 of the evidence that is an alarm.
        inputs: after how many inputs each value was taken; None for every input.
        alarm: the input of the alarm, which may lie between two of these; None without one.
    """
    x = list(range(1, len(evidence) + 1)) if inputs is None else list(inputs)
    title = "No alarm" if alarm is None else f"Alarm at input {alarm:,}"
    limit = tables.Series("alarm", [(at, threshold) for at in x], printed=True)
    lines = [tables.Series("evidence", list(zip(x, map(float, evidence)))), limit]
    below = "inputs" if alarm is None else f"inputs (dotted: {title[0].lower()}{title[1:]})"
    label = "evidence of drift, powers of 10"
    return tables.Lines("evidence", title, below, label, lines, mark=alarm)
