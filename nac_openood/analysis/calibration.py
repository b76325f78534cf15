"""How well confidences are calibrated where OOD samples count as wrong predictions (Table 19).

`calibration_error.py` has the errors, `confidence.py` the ways from scores to probabilities, and
`mixtures.py` applies both.
"""

from __future__ import annotations

from typing import Optional, Sequence

from nac_openood.analysis.calibration_error import equal_mass_bins
from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.mixtures import (
    ALL_SAMPLES,
    CONSTANT,
    ERRORS,
    FIFTH,
    PLAIN,
    SCALED,
    Confident,
    Mixture,
    confident,
    mean_error,
    mixtures,
)
from nac_openood.analysis.options import Options
from nac_openood.analysis.tabulate import text_heads
from nac_openood.benchmark.paper.published import table
from nac_openood.search.advice import NAC_TITLE
from nac_openood.tables import Column, Entry, Lines, Series, Table

_PRINTED = {"msp": PLAIN, "temp_scaling": SCALED, "nac": NAC_TITLE}
_TITLES = tuple(_PRINTED.values())
_ID_ALONE = "ID alone"
_POINTS = 10  # of a reliability diagram
_NOTES = (
    "OOD samples count as wrong. Bins hold 100 samples each, as in Outlier Exposure (Hendrycks et "
    "al., ICLR 2019), and the last one counts, too. All numbers are percent.",
    "MSP is the largest softmax probability, TempScale the same after temperature scaling. NAC is "
    "the coverage itself, read as a probability. 'Fitted' is a logistic curve from the score to "
    "correctness. TempScale x NAC is TempScale times min(1, p / 0.05), where p is the p-value of "
    "the score among ID validation data. Constant gives every sample the accuracy on ID validation "
    "data. All of them are fitted on ID validation data; none sees OOD data.",
    "The error depends on how many samples are OOD: the more there are, the better low "
    "confidences do, deserved or not. The paper's errors are possible only if all OOD samples are "
    "used; Outlier Exposure takes one for every five ID samples.",
)
_NO_ERRORS = (
    "The network classifies all ID validation samples correctly. So the best temperature is the "
    "smallest that was tried, and the fitted curves are almost constant."
)


def calibration(data: AnalysisData, options: Options) -> Finding:
    """RMS and MAD calibration errors on ID test data mixed with each OOD set."""
    known = confident(data)
    found = mixtures(known, repeats=options.repeats, seed=options.seed)
    shown = known.outside if options.ood_set is None else [data.ood_set(options.ood_set)]
    tables = [_table(found, metric, mixed) for mixed in (ALL_SAMPLES, FIFTH) for metric in ERRORS]
    return Finding(
        "calibration",
        "Calibration",
        _sentence(found, list(known.by_method)),
        [*tables, _levels(known), *([_against(found)] if options.against else [])],
        [_diagram(known, name) for name in (None, *shown)],
        [
            {"dataset": m.name or _ID_ALONE, "mixture": m.mixed, "method": method, **errors}
            for m in found
            for method, errors in m.errors.items()
        ],
        known.fitted,
        _NOTES if known.fitted["wrong"] else (*_NOTES, _NO_ERRORS),
    )


def _table(found: Sequence[Mixture], metric: str, mixed: str) -> Table:
    methods = list(found[0].errors)
    heads = [Column(method, better="lower") for method in methods]
    rows: list[list[Entry]] = [
        [m.name or _ID_ALONE, *(m.errors[method][metric] for method in methods)]
        for m in found
        if m.mixed == mixed
    ]
    means = [mean_error(found, mixed, m, metric) for m in methods]
    rows.append(["Mean over OOD sets", *means])
    title = f"{metric} calibration error, {mixed}"
    return Table(title, [*text_heads("ID test data with"), *heads], rows)


def _levels(known: Confident) -> Table:
    """The mean confidence of right, wrong and OOD samples."""
    hits = known.pick(known.right, None)
    rows: list[list[Entry]] = []
    for method, values in known.by_method.items():
        inside = known.pick(values, None)
        parts = [inside[hits], inside[~hits], *(values[name] for name in known.outside)]
        rows.append([method, *(100 * float(p.mean()) if len(p) else None for p in parts)])
    heads = [Column(title) for title in ("ID, right", "ID, wrong", *known.outside)]
    return Table("Mean confidence, %", [*text_heads("Method"), *heads], rows)


def _against(found: Sequence[Mixture]) -> Table:
    """The paper's numbers, and what was measured on sets of the same names."""
    paper, here = "Paper: cifar10 with resnet18_32x32", "Measured, all samples"
    columns = [
        *text_heads("OOD set", "Error"),
        *(Column(title, group, "lower") for group in (here, paper) for title in _TITLES),
    ]
    measured = {m.name: m.errors for m in found if m.mixed == ALL_SAMPLES}
    printed = table("Table 19")
    rows: list[list[Entry]] = []
    for dataset in dict.fromkeys(cell.at["dataset"] for cell in printed.cells()):
        for metric in ERRORS:
            values = [printed.value(dataset=dataset, metric=metric, method=m) for m in _PRINTED]
            errors = measured.get(dataset, {})
            mine = [errors[m][metric] if m in errors else None for m in _TITLES]
            rows.append([dataset, metric, *mine, *(None if v is None else v.mean for v in values)])
    return Table("Table 19 of the paper", columns, rows)


def _diagram(known: Confident, name: Optional[str]) -> Lines:
    """A reliability diagram: accuracy over confidence, in ten bins of equal mass."""
    hits = known.pick(known.right, name)
    series = []
    for method, values in known.by_method.items():
        if method != CONSTANT:
            bins = equal_mass_bins(
                known.pick(values, name), hits, size=max(1, len(hits) // _POINTS)
            )
            points = [(100 * b.confidence, 100 * b.accuracy, None) for b in bins]
            series.append(Series(method, points))
    title = f"Reliability, ID test data {'alone' if name is None else f'with {name}'}"
    key = f"reliability_{name or 'id'}"
    return Lines(key, title, "mean confidence, %", "correct, %", series, diagonal=True)


def _sentence(found: Sequence[Mixture], methods: Sequence[str]) -> str:
    told = []
    for mixed in (ALL_SAMPLES, FIFTH):
        means = {m: mean_error(found, mixed, m, "RMS") for m in methods if m != CONSTANT}
        best = min(means, key=lambda m: means[m])
        others = ", ".join(f"{m} {means[m]:.1f} %" for m in _TITLES if m != best)
        told.append(f"{best} has the lowest mean RMS error ({means[best]:.1f} %; {others})")
    return f"With all OOD samples, {told[0]}. With one OOD sample for five ID samples, {told[1]}."
