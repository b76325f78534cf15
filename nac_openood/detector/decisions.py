"""Decisions about samples: calibration, false alarms, selections of a whole dataset, guarantees.

`docs/guarantees.md` says what is promised, under which assumptions, and why.
"""

from __future__ import annotations

import math
import warnings
from itertools import tee
from typing import Any, Iterable, NamedTuple, Optional, Sequence

import numpy as np
from torch import Tensor

from nac_openood.core.pvalues import ALPHA, PValues
from nac_openood.core.rule import Rule
from nac_openood.detector.outcomes import ScoredBatch, checked_alpha, report_nonfinite
from nac_openood.errors import NACError

LEVELS = (0.01, 0.05, 0.10)
#: How many draws estimate the range of false alarms that chance explains.
_DRAWS = 20_000


def calibrate_rule(
    rule: Rule,
    batches: Iterable[ScoredBatch],
    tpr: float = 1 - ALPHA,
    confidence: Optional[float] = None,
    per_class: bool = False,
) -> tuple[PValues, ScoredBatch]:
    """Calibrate a rule on data that is scored while iterating; see `NACDetector.calibrate`.

    Returns:
        The p-values, and the scores of the data.
    """
    alpha = round(1 - checked_alpha(tpr, "tpr"), 12)  # 1 - 0.9 is a little less than 0.1
    if confidence is not None:
        checked_alpha(confidence, "confidence")
    iterated, kept = tee(batches)
    scores = rule.calibrate(batch.parts for batch in iterated).cpu()
    report_nonfinite(scores)
    if len(scores) > 1 and bool((scores == scores[0]).all()):
        other = "" if rule.name == "nac_plus" else " or settings, or rule='nac_plus'"
        raise NACError(
            f"all {len(scores)} calibration samples have the same score, so nothing can be told "
            f"apart. Check that the inputs differ, and choose other layers{other}."
        )
    found = ScoredBatch.joined(kept)
    classes = found.prediction[rule.ranking_rows(len(found.prediction))]
    pvalues = PValues(scores, classes, alpha=alpha, confidence=confidence, per_class=per_class)
    pvalues.warn_if_never(alpha)
    return pvalues, found


def calibration_text(pvalues: Optional[PValues]) -> str:
    """What a detector was calibrated on and promises, on one line."""
    if pvalues is None:
        return "not yet: call calibrate(loader)"
    if not pvalues.exact:
        return "as in version 0.1, without a guarantee: call calibrate(loader) again"
    of = " of every predicted class" if pvalues.per_class else ""
    level = f"{100 * pvalues.alpha:.4g} %"
    sure = pvalues.confidence
    how = "on average" if sure is None else f"with a confidence of {sure:.4g}"
    return (
        f"{len(pvalues.scores):,} samples rank new ones; at most {level} of ID samples{of} are "
        f"called out, {how}"
    )


def guarantee(pvalues: Optional[PValues], threshold: Optional[float]) -> str:
    """What p-values and a threshold promise, in words.

    Args:
        pvalues: None before calibration.
        threshold: that of the detector, which may have been set by hand.
    """
    if pvalues is None:
        return "No guarantee: this detector is not calibrated. Call calibrate(loader)."
    n, confidence = len(pvalues.scores), pvalues.confidence
    if not pvalues.exact:
        return (
            f"No guarantee: the {n} calibration samples also shaped the score, as they did in "
            "version 0.1. Call calibrate(loader) again."
        )
    of = "in-distribution samples"
    if pvalues.per_class:
        of += " of every predicted class (rare classes together)"
    promise = f"at most a share p of new {of} has a p-value of p or less"
    if threshold == pvalues.threshold:
        promise += f", and `predict` calls at most {100 * pvalues.alpha:.4g} % out-of-distribution"
    else:
        promise += " (but `predict` has another threshold than `calibrate` found: no guarantee)"
    how = "on average over calibration sets" if confidence is None else (
        f"each with a confidence of {confidence:.4g} for this calibration set"
    )  # fmt: skip
    return (
        f"Guaranteed, {how} ({n} samples): {promise}. This holds for any network and any "
        "distribution, if the calibration samples "
        "and the new ones come independently from the same source, and none of them was used to "
        "train the network or to fit the detector. It does not say how many out-of-distribution "
        "samples are found."
    )


# -- measured false alarms -----------------------------------------------------------------


class FalseAlarms(NamedTuple):
    """The false-alarm rate at one level.

    Attributes:
        level: an alarm is a p-value at or below it.
        rate: the share of in-distribution samples with an alarm.
        low: lower end of the 95 % confidence interval (Clopper and Pearson) of the rate with this
            calibration set.
        high: its upper end.
        n_samples: how many samples were measured.
        expected: 95 % of rates lie in this range if the samples are like the calibration data: it
            reflects the sizes of both.
    """

    level: float
    rate: float
    low: float
    high: float
    n_samples: int
    expected: tuple[float, float] = (0.0, 1.0)

    def __repr__(self) -> str:
        low, high = self.expected
        return (
            f"p <= {self.level:g}: {self.rate:.1%} of {self.n_samples} samples (data like the "
            f"calibration data: {low:.1%} to {high:.1%})"
        )


def false_alarm_rates(
    p_values: Any,
    levels: Sequence[float] = LEVELS,
    pvalues: Optional[PValues] = None,
    classes: Optional[Tensor] = None,
) -> list[FalseAlarms]:
    """False-alarm rates of in-distribution data.

    Args:
        p_values: of the data, `[samples]`.
        levels: p-values.
        pvalues: what they were computed with; None leaves `expected` open.
        classes: predicted classes of the data; needed for p-values per class.
    """
    p = np.asarray(p_values, dtype=np.float64).ravel()
    n, found = len(p), []
    for level in np.ravel(levels).tolist():
        # a sample without a p-value (NaN readings) is an alarm, as in `NACDetector.predict`
        k = int((~(p > checked_alpha(level, "levels"))).sum())
        low, high = binomial_interval(k, n)
        expected = (0.0, 1.0) if pvalues is None else _expected(pvalues, level, n, classes)
        found.append(FalseAlarms(level, k / n, low, high, n, expected))
    return found


def _expected(
    pvalues: PValues, level: float, n: int, classes: Optional[Tensor]
) -> tuple[float, float]:
    """The range of 95 % of false-alarm rates, by the chance of calibration and test samples.

    Given calibration, the rate at the k-th of `m` scores is Beta(k, m + 1 - k). Ties make it lower.
    """
    draw, total = np.random.default_rng(0), np.zeros(_DRAWS)
    for alarms, size, tested in pvalues.ranks_at(level, n, classes):
        if alarms and tested:
            rates = draw.beta(alarms, size + 1 - alarms, _DRAWS)
            total += draw.binomial(tested, rates)
    low, high = np.quantile(total / n, [0.025, 0.975])
    return float(low), float(high)


def binomial_interval(count: int, n: int) -> tuple[float, float]:
    """The 95 % confidence interval (Clopper and Pearson) of a share, given `count` of `n`."""
    from scipy.stats import binomtest

    low, high = binomtest(count, n).proportion_ci(0.95, "exact")
    return float(low), float(high)


# -- decisions about a whole dataset -------------------------------------------------------


class Selection(NamedTuple):
    """Which samples of a dataset to call out-of-distribution.

    Attributes:
        out: bool `[samples]`. Samples with NaN or Inf readings are always included.
        p_value: `[samples]`; NaN where readings are NaN or Inf.
        fdr: on average, at most this share of the samples in `out` is in-distribution.
        fewest: the smallest number of samples that can be selected together. If it is larger than
            the dataset, there is too little calibration data.
    """

    out: np.ndarray
    p_value: np.ndarray
    fdr: float
    fewest: int

    def __repr__(self) -> str:
        return (
            f"{int(self.out.sum())} of {len(self.out)} samples are out-of-distribution (false "
            f"discovery rate {self.fdr:g}; at least {self.fewest} are selected, or none)"
        )


def select(p_values: Any, fdr: float, pvalues: PValues) -> Selection:
    """Select out-of-distribution samples by the procedure of Benjamini and Hochberg.

    It controls the false discovery rate because conformal p-values that share a calibration set
    depend on each other positively (Bates et al., 2023).

    Args:
        p_values: of a dataset, `[samples]`.
        fdr: the false discovery rate that is accepted.
        pvalues: what they were computed with.
    """
    from scipy.stats import false_discovery_control

    fdr, p = checked_alpha(fdr, "fdr"), np.asarray(p_values, dtype=np.float64).ravel()
    out = np.isnan(p)
    tested, least = p[~out], float(pvalues.least.min())
    if len(tested):
        out[~out] = false_discovery_control(tested) <= fdr
    fewest = max(1, math.ceil(least * len(tested) / fdr - 1e-9))
    if fewest > max(1, len(tested)):
        warnings.warn(
            f"nothing can be selected at a false discovery rate of {fdr:g}: the smallest p-value "
            f"possible is {least:.3g}. Calibrate on more in-distribution data.",
            stacklevel=3,
        )
    return Selection(out, p, fdr, fewest)
