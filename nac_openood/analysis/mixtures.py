"""Confidences of the methods, and their calibration errors on ID data mixed with OOD data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from nac_openood.analysis.calibration_error import equal_mass_bins, mad_error, rms_error
from nac_openood.analysis.confidence import LogisticMap, temperature_of, typical
from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.scores import ID_VAL, correct, scored_sets, scores_on_readings
from nac_openood.core.logit_scores import msp
from nac_openood.errors import NACError
from nac_openood.search.advice import NAC_PLUS_TITLE, NAC_TITLE

#: Confidence by method and set, `[samples]` each.
Confidences = Mapping[str, Mapping[str, np.ndarray]]

PLAIN, SCALED, CONSTANT = "MSP", "TempScale", "Constant"
ERRORS = {"RMS": rms_error, "MAD": mad_error}
#: How many OOD samples are mixed with the ID test samples.
ALL_SAMPLES, FIFTH = "all samples", "5 ID : 1 OOD"
_ID_PER_OOD = 5


class Mixture(NamedTuple):
    """ID test samples with samples of one OOD set.

    Args:
        name: the OOD set; None for ID samples alone.
        mixed: `ALL_SAMPLES` or `FIFTH`.
        errors: RMS and MAD calibration error in percent, by method.
    """

    name: Optional[str]
    mixed: str
    errors: Mapping[str, Mapping[str, float]]


class Confident(NamedTuple):
    """Confidences and correctness of all test samples.

    Args:
        inside: names of the ID test sets.
        outside: names of the OOD sets.
        right: which predictions are correct, by set, `[samples]` each.
        by_method: confidences.
        fitted: what was fitted on ID validation data, as JSON values.
    """

    inside: Sequence[str]
    outside: Sequence[str]
    right: Mapping[str, np.ndarray]
    by_method: Confidences
    fitted: Mapping[str, Any]

    def pick(
        self, values: Mapping[str, np.ndarray], name: Optional[str], rows: Any = slice(None)
    ) -> np.ndarray:
        """Values of the ID test sets and of some rows of an OOD set."""
        parts = [values[n] for n in self.inside]
        return np.concatenate(parts if name is None else [*parts, values[name][rows]])

    def errors(self, name: Optional[str], rows: Any = slice(None)) -> dict[str, dict[str, float]]:
        """RMS and MAD in percent by method."""
        hits = self.pick(self.right, name, rows)
        found = {}
        for method, values in self.by_method.items():
            bins = equal_mass_bins(self.pick(values, name, rows), hits)
            found[method] = {metric: 100 * error(bins) for metric, error in ERRORS.items()}
        return found


def confident(data: AnalysisData) -> Confident:
    """Confidence of every method on every test set; nothing but ID validation data is used."""
    sets, val = scored_sets(data), data.fitting.id_val
    if val.logits is None or not bool((val.label >= 0).all()):
        raise NACError("calibration needs logits and a label for every ID validation sample.")
    temperature, val_right = temperature_of(val.logits, val.label), correct(val)
    found: dict[str, dict[str, np.ndarray]] = {PLAIN: {}, SCALED: {}, CONSTANT: {}}
    for name, readings in sets.items():
        assert readings.logits is not None
        found[PLAIN][name] = msp(readings.logits).numpy()
        found[SCALED][name] = msp(readings.logits.double() / temperature).numpy()
        found[CONSTANT][name] = np.full(readings.n_samples, val_right.mean())
    scores = scores_on_readings(data)
    found[NAC_TITLE] = dict(scores[NAC_TITLE])
    fitted: dict[str, Any] = {"temperature": temperature, "wrong": int((~val_right).sum())}
    ours = [method for method in (NAC_TITLE, NAC_PLUS_TITLE) if method in scores]
    for method in ours:
        curve = LogisticMap.fit(scores[method][ID_VAL], val_right)
        found[fitted_name(method)] = {n: curve(score) for n, score in scores[method].items()}
        fitted[fitted_name(method)] = asdict(curve)
        found[joint_name(method)] = {
            n: found[SCALED][n] * typical(score, scores[method][ID_VAL])
            for n, score in scores[method].items()
        }
    order = [PLAIN, SCALED, NAC_TITLE, *map(fitted_name, ours), *map(joint_name, ours), CONSTANT]
    right = {name: correct(readings) for name, readings in data.scored.items()}
    inside, outside = data.names("id", "csid"), data.names("near", "far")
    return Confident(inside, outside, right, {m: found[m] for m in order}, fitted)


def fitted_name(method: str) -> str:
    """The name of a method whose score is mapped by a logistic curve."""
    return f"{method}, fitted"


def joint_name(method: str) -> str:
    """The name of temperature scaling that a method's p-value corrects."""
    return f"{SCALED} x {method}"


def mixtures(known: Confident, *, repeats: int, seed: int) -> list[Mixture]:
    """ID samples alone, then with every OOD set, once with all of its samples and once with few.

    Few are one for five ID samples, drawn at random; errors are means over `repeats` draws.
    """
    found = [Mixture(None, ALL_SAMPLES, known.errors(None))]
    found += [Mixture(name, ALL_SAMPLES, known.errors(name)) for name in known.outside]
    wanted = max(1, sum(len(known.right[n]) for n in known.inside) // _ID_PER_OOD)
    for name in known.outside:
        rng, size = np.random.default_rng(seed), len(known.right[name])
        draws = [rng.permutation(size)[:wanted] for _ in range(repeats if wanted < size else 1)]
        several = [known.errors(name, rows) for rows in draws]
        means = {
            method: {m: float(np.mean([each[method][m] for each in several])) for m in ERRORS}
            for method in known.by_method
        }
        found.append(Mixture(name, FIFTH, means))
    return found


def mean_error(found: Sequence[Mixture], mixed: str, method: str, metric: str) -> float:
    """The mean over the OOD sets, in percent."""
    chosen = [m for m in found if m.mixed == mixed and m.name is not None]
    return float(np.mean([m.errors[method][metric] for m in chosen]))
