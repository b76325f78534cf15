"""Calibration errors of confidences if OOD samples count as wrong predictions (Table 19)."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from nac_openood.analysis.confidence import LogisticMap, equal_mass_bins, temperature_of, typicality
from nac_openood.analysis.data import AnalysisData, Options
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.scoring import ID_VAL, BySet, scores_on_readings, with_id_val
from nac_openood.analysis.tabulate import text_heads
from nac_openood.benchmark.paper.published import table
from nac_openood.core.reading import logits_in
from nac_openood.detector.readings import Readings
from nac_openood.errors import NACError
from nac_openood.search.advise import NAC_PLUS_TITLE, NAC_TITLE, msp
from nac_openood.tables import Column, Entry, Lines, Series, Table

MSP_TITLE, SCALED, CONSTANT = "MSP", "TempScale", "Constant"
_ERRORS = ("RMS", "MAD")
#: How many OOD samples are mixed with the ID test samples.
ALL_SAMPLES, FIFTH = "all samples", "5 ID : 1 OOD"
_ID_PER_OOD = 5
#: The paper's methods and their titles here.
_PRINTED = {"msp": MSP_TITLE, "temp_scaling": SCALED, "nac": NAC_TITLE}
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


class Confidences(NamedTuple):
    """Confidences and correctness of all test samples.

    Args:
        id_sets: names of the ID test sets.
        ood_sets: names of the OOD sets.
        correct: which predictions are correct, by set, `[samples]` each.
        by_method: confidences by method and set, `[samples]` each.
        fitted: what was fitted on ID validation data, as JSON values.
    """

    id_sets: Sequence[str]
    ood_sets: Sequence[str]
    correct: BySet
    by_method: Mapping[str, BySet]
    fitted: Mapping[str, Any]

    def mixed(self, values: BySet, name: Optional[str], rows: Any = slice(None)) -> np.ndarray:
        """Values of the ID test sets and of some rows of an OOD set."""
        parts = [values[n] for n in self.id_sets]
        return np.concatenate(parts if name is None else [*parts, values[name][rows]])

    def errors(self, name: Optional[str], rows: Any = slice(None)) -> dict[str, dict[str, float]]:
        """RMS and MAD in percent by method."""
        correct, found = self.mixed(self.correct, name, rows), {}
        for method, values in self.by_method.items():
            bins = equal_mass_bins(self.mixed(values, name, rows), correct)
            found[method] = {metric: 100 * error for metric, error in bins.errors().items()}
        return found


def calibration(data: AnalysisData, options: Options) -> Finding:
    """RMS and MAD calibration errors on ID test data mixed with each OOD set."""
    measured = confidences(data)
    errors = _mixture_errors(measured, options)
    methods = list(measured.by_method)
    means = {
        (mixture, method, metric): float(
            np.mean([errors[name, mixture][method][metric] for name in measured.ood_sets])
        )
        for mixture in (ALL_SAMPLES, FIFTH)
        for method in methods
        for metric in _ERRORS
    }
    heads = [*text_heads("ID test data with"), *(Column(m, better="lower") for m in methods)]
    tables, best = [], []
    for mixture in (ALL_SAMPLES, FIFTH):
        for metric in _ERRORS:
            rows: list[list[Entry]] = [
                [name or _ID_ALONE, *(by_method[m][metric] for m in methods)]
                for (name, mixed), by_method in errors.items()
                if mixed == mixture
            ]
            rows.append(["Mean over OOD sets", *(means[mixture, m, metric] for m in methods)])
            tables.append(Table(f"{metric} calibration error, {mixture}", heads, rows))
        rms = {m: means[mixture, m, "RMS"] for m in methods if m != CONSTANT}
        first = min(rms, key=rms.__getitem__)
        others = ", ".join(f"{m} {rms[m]:.1f} %" for m in _PRINTED.values() if m != first)
        best.append(f"{first} has the lowest mean RMS error ({rms[first]:.1f} %; {others})")
    tables.append(_mean_confidences(measured))
    if options.against:
        tables.append(_paper_table(errors))
    shown = measured.ood_sets if options.ood_set is None else [data.ood_set(options.ood_set)]
    return Finding(
        "calibration", "Calibration",
        f"With all OOD samples, {best[0]}. With one OOD sample for five ID samples, {best[1]}.",
        tables, [_diagram(measured, name) for name in (None, *shown)],
        [
            {"dataset": name or _ID_ALONE, "mixture": mixture, "method": method, **found}
            for (name, mixture), by_method in errors.items()
            for method, found in by_method.items()
        ],
        measured.fitted, _NOTES if measured.fitted["wrong"] else (*_NOTES, _NO_ERRORS),
    )  # fmt: skip


def confidences(data: AnalysisData) -> Confidences:
    """Confidence of every method on every test set, fitted on ID validation data alone."""
    val, scores = data.fitting.id_val, scores_on_readings(data)
    if val.logits is None or not bool((val.label >= 0).all()):
        raise NACError("calibration needs logits and a label for every ID validation sample.")
    temperature, val_correct = temperature_of(val.logits, val.label), _correct(val)
    logits = {name: logits_in(readings) for name, readings in with_id_val(data).items()}
    scaled = {n: msp(each.double() / temperature).numpy() for n, each in logits.items()}
    found: dict[str, BySet] = {
        MSP_TITLE: {n: msp(each).numpy() for n, each in logits.items()},
        SCALED: scaled, NAC_TITLE: scores[NAC_TITLE],
    }  # fmt: skip
    constant = {n: np.full(len(each), val_correct.mean()) for n, each in logits.items()}
    fitted: dict[str, Any] = {"temperature": temperature, "wrong": int((~val_correct).sum())}
    joint = {}
    for method in (NAC_TITLE, NAC_PLUS_TITLE):
        if method in scores:
            own = scores[method]
            curve = LogisticMap.fit(own[ID_VAL], val_correct)
            found[f"{method}, fitted"] = {name: curve(score) for name, score in own.items()}
            fitted[f"{method}, fitted"] = curve._asdict()
            joint[f"{SCALED} x {method}"] = {
                n: scaled[n] * typicality(score, own[ID_VAL]) for n, score in own.items()
            }
    correct = {name: _correct(readings) for name, readings in data.scored.items()}
    return Confidences(
        data.names("id", "csid"), data.names("near", "far"), correct,
        {**found, **joint, CONSTANT: constant}, fitted,
    )  # fmt: skip


def _correct(readings: Readings) -> np.ndarray:
    """Which predictions are correct, bool `[samples]`; those of OOD samples never are."""
    return (readings.prediction == readings.label).numpy()


def _mixture_errors(
    measured: Confidences, options: Options
) -> dict[tuple[Optional[str], str], dict[str, dict[str, float]]]:
    """Errors by OOD set (None for ID samples alone) and mixture, then by method and metric.

    OOD sets are mixed once with all of their samples and once with a random one for every five ID
    samples; errors of the latter are means over `options.repeats` draws.
    """
    found = {(name, ALL_SAMPLES): measured.errors(name) for name in (None, *measured.ood_sets)}
    wanted = max(1, sum(len(measured.correct[n]) for n in measured.id_sets) // _ID_PER_OOD)
    for name in measured.ood_sets:
        rng, size = np.random.default_rng(options.seed), len(measured.correct[name])
        repeats = options.repeats if wanted < size else 1
        draws = [measured.errors(name, rng.permutation(size)[:wanted]) for _ in range(repeats)]
        found[name, FIFTH] = {
            method: {m: float(np.mean([draw[method][m] for draw in draws])) for m in _ERRORS}
            for method in measured.by_method
        }
    return found


def _mean_confidences(measured: Confidences) -> Table:
    """The mean confidence of correct, wrong and OOD samples."""
    correct = measured.mixed(measured.correct, None)
    rows: list[list[Entry]] = []
    for method, values in measured.by_method.items():
        inside = measured.mixed(values, None)
        parts = [inside[correct], inside[~correct], *(values[name] for name in measured.ood_sets)]
        rows.append([method, *(100 * float(p.mean()) if len(p) else None for p in parts)])
    heads = [Column(title) for title in ("ID, right", "ID, wrong", *measured.ood_sets)]
    return Table("Mean confidence, %", [*text_heads("Method"), *heads], rows)


def _paper_table(errors: Mapping[tuple[Optional[str], str], Any]) -> Table:
    """The paper's numbers, and what was measured on sets of the same names."""
    groups = ("Measured, all samples", "Paper: cifar10 with resnet18_32x32")
    columns = [
        *text_heads("OOD set", "Error"),
        *(Column(title, group, "lower") for group in groups for title in _PRINTED.values()),
    ]
    printed = table("Table 19")
    rows: list[list[Entry]] = []
    for dataset in dict.fromkeys(cell.at["dataset"] for cell in printed.cells()):
        measured = errors.get((dataset, ALL_SAMPLES), {})
        for metric in _ERRORS:
            values = [printed.value(dataset=dataset, metric=metric, method=m) for m in _PRINTED]
            own = [measured[m][metric] if measured else None for m in _PRINTED.values()]
            rows.append([dataset, metric, *own, *(None if v is None else v.mean for v in values)])
    return Table("Table 19 of the paper", columns, rows)


def _diagram(measured: Confidences, name: Optional[str]) -> Lines:
    """A reliability diagram: accuracy over confidence, in ten bins of equal mass."""
    correct = measured.mixed(measured.correct, name)
    series = []
    for method, values in measured.by_method.items():
        if method != CONSTANT:
            size = max(1, len(correct) // _POINTS)
            bins = equal_mass_bins(measured.mixed(values, name), correct, size=size)
            pairs = zip(100 * bins.confidence, 100 * bins.accuracy)
            series.append(Series(method, [(float(x), float(y), None) for x, y in pairs]))
    title = f"Reliability, ID test data {'alone' if name is None else f'with {name}'}"
    key = f"reliability_{name or 'id'}"
    return Lines(key, title, "mean confidence, %", "correct, %", series, diagonal=True)
