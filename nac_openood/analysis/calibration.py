"""Calibration errors of confidences if OOD samples count as wrong predictions (Table 19).

A confidence is the probability that a prediction is correct:

* MSP is already such a probability. Temperature scaling (Guo et al., ICML 2017) divides the logits
  by the temperature with the smallest loss on ID validation data.
* Coverage is between 0 and 1, so it can be used as a probability unchanged. The paper does not
  mention any other mapping.
* Any score can be mapped by a logistic curve fitted to ID validation data: 1 where the network is
  right, 0 where it is wrong (Platt scaling). Like temperature scaling it needs no OOD data, but
  nothing can be learned if there are no wrong predictions.
* A score can lower another confidence where it is unusual: temperature scaling times `typicality`.

RMS and MAD calibration errors are those of Hendrycks et al. (Outlier Exposure, ICLR 2019). Samples
are sorted by confidence and cut into bins. In each bin, the gap is the difference between the mean
confidence and the share of correct predictions. RMS is the root of the mean squared gap over
samples, MAD is the mean absolute gap. OOD samples count as wrong: no class is right for them.
Their code leaves out the last bin, that of the most confident samples; their formulas do not, and
neither does this file.
"""

from __future__ import annotations

from itertools import product
from typing import Any, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit
from torch import Tensor

from nac_openood.analysis.data import ID_VAL, AnalysisData, BySet, Options
from nac_openood.analysis.finding import Finding, printed_entry
from nac_openood.benchmark.paper.published import table
from nac_openood.core.fusion import TailEstimate
from nac_openood.core.posthoc import msp
from nac_openood.core.reading import logits_in
from nac_openood.detector.readings import Readings
from nac_openood.errors import NACError
from nac_openood.search.advise import NAC_PLUS_TITLE, NAC_TITLE
from nac_openood.tables import Column, Entry, Lines, Series, Table, text_columns

MSP_TITLE, SCALED, CONSTANT = "MSP", "TempScale", "Constant"
_ERRORS = ("RMS", "MAD")
#: How many OOD samples are mixed with the ID test samples.
ALL_SAMPLES, FIFTH = "all samples", "5 ID : 1 OOD"
_ID_PER_OOD = 5
#: The paper's methods and their titles here.
_PRINTED = {"msp": MSP_TITLE, "temp_scaling": SCALED, "nac": NAC_TITLE}
_ID_ALONE = "ID alone"
_POINTS = 10  # of a reliability diagram
#: Samples per bin, as in Outlier Exposure.
BIN_SIZE = 100
_LOG_LIMIT = 6.0  # temperatures between e^-6 and e^6
_UNUSUAL = 0.05  # p-values below it make a sample less credible
_NOTES = (
    "OOD samples count as wrong predictions. Bins have 100 samples, as in Outlier Exposure "
    "(Hendrycks et al., ICLR 2019), but the last bin is not left out. All numbers are percent.",
    "MSP is the largest softmax probability, TempScale the same after temperature scaling. NAC is "
    "the coverage itself, read as a probability. 'Fitted' is a logistic curve from the score to "
    "correctness. TempScale x NAC is TempScale times min(1, p / 0.05), where p is the p-value of "
    "the score among ID validation data. Constant gives every sample the accuracy on ID validation "
    "data. All of them are fitted on ID validation data; none sees OOD data.",
    "The error depends on the share of OOD samples: the larger it is, the more a method gains by "
    "low confidences of any kind. Errors as large as the paper's are possible only with all OOD "
    "samples; Outlier Exposure takes one for every five ID samples.",
)
_NO_ERRORS = (
    "The network makes no errors on ID validation data, so the temperature is the smallest that "
    "was tried and the fitted curves are almost constant."
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

    def bins(
        self, method: str, name: Optional[str], rows: Any = slice(None), *, size: int = BIN_SIZE
    ) -> Bins:
        """The bins of a method's confidences on ID test data mixed with an OOD set."""
        correct = self.mixed(self.correct, name, rows)
        return equal_mass_bins(self.mixed(self.by_method[method], name, rows), correct, size=size)


def calibration(data: AnalysisData, options: Options) -> Finding:
    """RMS and MAD calibration errors on ID test data mixed with each OOD set."""
    measured = confidences(data)
    records, methods = _errors(measured, options), list(measured.by_method)
    heads = [*text_columns("ID test data with"), *(Column(m, better="lower") for m in methods)]
    tables, best = [], []
    for mixture, metric in product((ALL_SAMPLES, FIFTH), _ERRORS):
        found: dict[str, list[float]] = {}
        for record in (r for r in records if r["mixture"] == mixture):
            found.setdefault(record["dataset"], []).append(record[metric])
        means = np.mean([found[n] for n in measured.ood_sets], axis=0).tolist()
        rows: list[list[Entry]] = [[name, *values] for name, values in found.items()]
        rows.append(["Mean over OOD sets", *means])
        tables.append(Table(f"{metric} calibration error, {mixture}", heads, rows))
        if metric == "RMS":
            mean = dict(zip(methods, means))
            first = min((m for m in methods if m != CONSTANT), key=mean.__getitem__)
            others = ", ".join(
                f"{m} {mean[m]:.1f} %" for m in _PRINTED.values() if m != first and m in mean
            )
            best.append(f"{first} has the lowest mean RMS error ({mean[first]:.1f} %; {others})")
    tables.append(_mean_confidences(measured))
    if options.against:
        tables.append(_paper_table(records))
    shown = measured.ood_sets if options.ood_set is None else [data.ood_set(options.ood_set)]
    return Finding(
        "calibration", "Calibration",
        f"With all OOD samples, {best[0]}. With one OOD sample for five ID samples, {best[1]}.",
        tables, [_diagram(measured, name) for name in (None, *shown)], records,
        measured.fitted, _NOTES if measured.fitted["wrong"] else (*_NOTES, _NO_ERRORS),
    )  # fmt: skip


def confidences(data: AnalysisData) -> Confidences:
    """Confidence of every method on every test set, fitted on ID validation data alone."""
    val, scores = data.fitting.id_val, data.method_scores
    if val.logits is None or not bool((val.label >= 0).all()):
        raise NACError("calibration needs logits and a label for every ID validation sample.")
    temperature, val_correct = temperature_of(val.logits, val.label), _correct(val)
    sets = {ID_VAL: val, **data.scored}
    logits = {name: logits_in(readings) for name, readings in sets.items()}
    scaled = {n: msp(each.double() / temperature).numpy() for n, each in logits.items()}
    unscaled = {n: msp(each).numpy() for n, each in logits.items()}
    found: dict[str, BySet] = {MSP_TITLE: unscaled, SCALED: scaled}
    if NAC_TITLE in scores:
        found[NAC_TITLE] = scores[NAC_TITLE]
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
    constant = {n: np.full(len(each), val_correct.mean()) for n, each in logits.items()}
    return Confidences(
        data.names("id", "csid"), data.names("near", "far"),
        {name: _correct(readings) for name, readings in data.scored.items()},
        {**found, **joint, CONSTANT: constant}, fitted,
    )  # fmt: skip


def _correct(readings: Readings) -> np.ndarray:
    """Which predictions are correct, bool `[samples]`; those of OOD samples never are."""
    return (readings.prediction == readings.label).numpy()


def _errors(measured: Confidences, options: Options) -> list[dict[str, Any]]:
    """Errors in percent of ID test data alone and mixed with each OOD set, a record per method.

    OOD sets are mixed once with all of their samples and once with a random one for every five ID
    samples; errors of the latter are means over `options.repeats` draws.
    """
    draws: dict[tuple[Optional[str], str], list[Any]] = {
        (name, ALL_SAMPLES): [slice(None)] for name in (None, *measured.ood_sets)
    }
    wanted = max(1, sum(len(measured.correct[n]) for n in measured.id_sets) // _ID_PER_OOD)
    for name in measured.ood_sets:
        rng, size = np.random.default_rng(options.seed), len(measured.correct[name])
        repeats = range(options.repeats if wanted < size else 1)
        draws[name, FIFTH] = [rng.permutation(size)[:wanted] for _ in repeats]
    records = []
    for ((name, mixture), chosen), method in product(draws.items(), measured.by_method):
        each = [measured.bins(method, name, rows).errors() for rows in chosen]
        means = {metric: float(np.mean([100 * e[metric] for e in each])) for metric in _ERRORS}
        at = {"dataset": name or _ID_ALONE, "mixture": mixture, "method": method}
        records.append({**at, **means})
    return records


def _mean_confidences(measured: Confidences) -> Table:
    """The mean confidence of correct, wrong and OOD samples."""
    correct = measured.mixed(measured.correct, None)
    rows: list[list[Entry]] = []
    for method, values in measured.by_method.items():
        inside = measured.mixed(values, None)
        parts = [inside[correct], inside[~correct], *(values[name] for name in measured.ood_sets)]
        rows.append([method, *(100 * float(p.mean()) if len(p) else None for p in parts)])
    heads = [*text_columns("Method"), *map(Column, ("ID, right", "ID, wrong", *measured.ood_sets))]
    return Table("Mean confidence, %", heads, rows)


def _paper_table(records: Sequence[Mapping[str, Any]]) -> Table:
    """The paper's numbers, and what was measured on sets of the same names."""
    groups = ("Measured, all samples", "Paper: cifar10 with resnet18_32x32")
    columns = text_columns("OOD set", "Error")
    columns += [Column(title, group, "lower") for group in groups for title in _PRINTED.values()]
    own = {(r["dataset"], r["method"]): r for r in records if r["mixture"] == ALL_SAMPLES}
    rows: list[list[Entry]] = []
    for (dataset,), metric in product(table("Table 19").rows, _ERRORS):
        at = {"dataset": dataset, "metric": metric}
        printed = [table("Table 19").value(method=m, **at) for m in _PRINTED]
        measured = [own.get((dataset, m), {}).get(metric) for m in _PRINTED.values()]
        rows.append([dataset, metric, *measured, *map(printed_entry, printed)])
    return Table("Table 19 of the paper", columns, rows)


def _diagram(measured: Confidences, name: Optional[str]) -> Lines:
    """A reliability diagram: accuracy over confidence, in ten bins of equal mass."""
    size = max(1, len(measured.mixed(measured.correct, name)) // _POINTS)
    series = []
    for method in [m for m in measured.by_method if m != CONSTANT]:
        bins = measured.bins(method, name, size=size)
        points = 100 * np.stack([bins.confidence, bins.accuracy], axis=1)
        series.append(Series(method, points.tolist()))
    title = f"Reliability, ID test data {'alone' if name is None else f'with {name}'}"
    key = f"reliability_{name or 'id'}"
    return Lines(key, title, "mean confidence, %", "correct, %", series, diagonal=True)


# -- confidences and their errors ------------------------------------------------------------


class Bins(NamedTuple):
    """Size, mean confidence and share of correct predictions of every bin, `[bins]` each."""

    size: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    def errors(self) -> dict[str, float]:
        """RMS and MAD calibration error, from 0 to 1."""
        gap = np.abs(self.confidence - self.accuracy)
        squared, mad = (float(np.average(g, weights=self.size)) for g in (gap**2, gap))
        return {"RMS": squared**0.5, "MAD": mad}


def equal_mass_bins(confidence: np.ndarray, correct: np.ndarray, *, size: int = BIN_SIZE) -> Bins:
    """Bins of `size` samples each; the last one also takes the rest.

    Samples of equal confidence share their accuracy, so their order does not matter.

    Args:
        confidence: from 0 to 1, `[samples]`.
        correct: whether each prediction is correct, `[samples]`.
        size: samples per bin.
    """
    if not ((confidence >= 0) & (confidence <= 1)).all():  # NaN, too
        raise NACError(
            f"expected confidences from 0 to 1, got {confidence.min():g} to {confidence.max():g}. "
            "Map scores to probabilities first."
        )
    values, index = np.unique(np.asarray(confidence, float), return_inverse=True)
    shared = np.bincount(index, np.asarray(correct, float)) / np.bincount(index)
    order = np.argsort(index, kind="stable")
    cuts = [size * n for n in range(1, len(order) // size)]
    parts = [index[part] for part in np.split(order, cuts)]
    means = [(len(part), values[part].mean(), shared[part].mean()) for part in parts]
    return Bins(*map(np.array, zip(*means)))


def temperature_of(logits: Tensor, label: Tensor) -> float:
    """The temperature with the smallest mean cross-entropy.

    Args:
        logits: `[samples, classes]`.
        label: int64 `[samples]`.
    """
    exact, limits = logits.double(), (-_LOG_LIMIT, _LOG_LIMIT)

    def loss(log_temperature: float) -> float:
        scaled = exact / float(np.exp(log_temperature))
        return float(torch.nn.functional.cross_entropy(scaled, label))

    found = minimize_scalar(loss, bounds=limits, method="bounded", options={"xatol": 1e-8})
    return float(np.exp(found.x))


class LogisticMap(NamedTuple):
    """`1 / (1 + exp(-(slope * (score - center) / scale + offset)))`.

    A slope of 0 means that the score does not separate right from wrong predictions; then every
    sample has the accuracy on the validation data as its confidence.
    """

    center: float
    scale: float
    slope: float
    offset: float

    def __call__(self, score: np.ndarray) -> np.ndarray:
        """Probabilities `[samples]`."""
        standard = (np.asarray(score, float) - self.center) / self.scale
        return expit(self.slope * standard + self.offset)

    @classmethod
    def fit(cls, score: np.ndarray, correct: np.ndarray) -> LogisticMap:
        """Fit the curve to scores and correctness of ID validation data, `[samples]` each.

        Targets are Platt's, slightly inside of 0 and 1, so that the curve stays finite if all
        predictions are correct. A score must not lower the confidence, so slopes below 0 become 0.
        """
        score, right = np.asarray(score, float), np.asarray(correct, bool)
        if not np.isfinite(score).all():
            raise NACError("expected finite scores, got NaN or Inf.")
        n_right, n_wrong = int(right.sum()), int((~right).sum())
        target = np.where(right, (n_right + 1) / (n_right + 2), 1 / (n_wrong + 2))
        center, scale = float(score.mean()), float(score.std()) or 1.0
        standard = (score - center) / scale

        def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
            raw = x[0] * standard + x[1]
            error = expit(raw) - target
            value = (np.logaddexp(0, raw) - target * raw).mean()
            return float(value), np.array([(error * standard).mean(), error.mean()])

        start = np.array([0.0, np.log(target.mean() / (1 - target.mean()))])
        found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(0, None), (None, None)],
                         options={"ftol": 1e-15, "gtol": 1e-10})  # fmt: skip
        return cls(center, scale, float(found.x[0]), float(found.x[1]))


def typicality(score: np.ndarray, id_val: np.ndarray) -> np.ndarray:
    """How typical a score is of ID validation data, from 0 to 1.

    `min(1, p / 0.05)` for the p-value `p` of `TailEstimate`: 1 for the upper 95 % of
    ID data, and then falling to 0. Multiplied by the probability that the class is right if the
    sample is in-distribution, it is a confidence that also falls for inputs unlike the training
    data.

    Args:
        score: `[samples]`; higher means more in-distribution.
        id_val: scores of ID validation data, at least 16.
    """
    p = TailEstimate(id_val)(torch.as_tensor(np.asarray(score, float)))
    return (p / _UNUSUAL).clamp(max=1.0).numpy()
