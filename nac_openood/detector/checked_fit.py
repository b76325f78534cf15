"""Fit, calibrate and measure a detector in one go, and say what looks suspicious."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Iterable, Iterator, Optional, Sequence

import numpy as np
from torch import Tensor

from nac_openood.core.pvalues import MIN_SAMPLES, PValues
from nac_openood.core.reading import Probed
from nac_openood.detector.detector import NACDetector
from nac_openood.detector.false_alarms import FalseAlarms, binomial_interval
from nac_openood.detector.store import FitSummary
from nac_openood.detector.verdicts import ALPHA, checked_alpha
from nac_openood.errors import NACError

#: Fewer fitting samples of a class say little about it.
_FEW = 10
#: By how much another order of the classes must raise the accuracy to be what is wrong.
_BETTER = 0.3


@dataclass(frozen=True)
class FitReport:
    """What there is to say about a detector that was just fitted.

    Args:
        n_fitted: number of fitting samples.
        n_classes: number of the network's classes.
        accuracy: the network's, on validation data.
        n_val: number of validation samples.
        alpha: the false-alarm rate that was asked for.
        threshold: scores at or below it have p-values of at most `alpha`.
        false_alarms: measured on test data; None without any.
        warnings: what looks suspicious, a sentence or two each.
    """

    n_fitted: int
    n_classes: int
    accuracy: float
    n_val: int
    alpha: float
    threshold: float
    false_alarms: Optional[FalseAlarms]
    warnings: tuple[str, ...]


def fit_checked(
    detector: NACDetector,
    train: Iterable[Any],
    val: Iterable[Any],
    test: Optional[Iterable[Any]] = None,
    *,
    n_samples: Optional[int] = None,
    n_classes: Optional[int] = None,
    alpha: float = ALPHA,
) -> FitReport:
    """Fit and calibrate a detector, and measure what can be measured.

    Args:
        detector: not fitted yet.
        train: batches of training data, under the test transform.
        val: batches of labeled ID validation data, to calibrate on.
        test: batches of other ID data, to measure false alarms on.
        n_samples: size of the fitting subset; None takes everything.
        n_classes: number of classes in the data, if it is known.
        alpha: the false-alarm rate that is wanted.

    Raises:
        NACError: the data does not fit the network, or is too little to calibrate on.
    """
    checked_alpha(alpha)
    told: list[str] = []
    with recorded(told):
        detector.fit(train, n_samples)
        answers = detector._calibrate(val, 1 - alpha, _answers)
    pvalues = enough(detector.pvalues_)
    alarms = None
    if test is not None:
        with recorded(told):
            alarms = detector.false_alarms(test, [alpha])[0]
    assert detector.fit_summary_ is not None
    counts = count_answers(answers)
    return report_of(detector.fit_summary_, counts, pvalues, alarms, told, n_classes, alpha)


def report_of(
    summary: FitSummary,
    answers: np.ndarray,
    pvalues: PValues,
    alarms: Optional[FalseAlarms],
    told: Sequence[str],
    n_classes: Optional[int],
    alpha: float,
) -> FitReport:
    """The report of a fit.

    Args:
        summary: what was fitted on.
        answers: how often which class was answered, `[classes, classes]`, true classes in rows.
        pvalues: from scores to p-values.
        alarms: measured on test data; None without any.
        told: warnings so far.
        n_classes: number of classes in the data, if it is known.
        alpha: the false-alarm rate that is wanted.
    """
    every = [
        *told,
        *_about_classes(summary.class_counts, answers.shape[1], n_classes),
        *_about_accuracy(answers),
        *_about_alarms(alarms),
    ]
    n_val = int(answers.sum())
    return FitReport(
        summary.n_samples, answers.shape[1], float(np.trace(answers) / n_val), n_val,
        alpha, pvalues.score_at(alpha), alarms, tuple(dict.fromkeys(every)),
    )  # fmt: skip


def enough(pvalues: Optional[PValues]) -> PValues:
    """The p-values, or an error if there were too few validation samples to make any."""
    if pvalues is None:
        raise NACError(
            f"expected at least {MIN_SAMPLES} validation samples to calibrate on, got fewer. Pass "
            "more as `val`."
        )
    return pvalues


@contextmanager
def recorded(told: list[str]) -> Iterator[None]:
    """Collect the warnings of a block as text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    told.extend(str(entry.message) for entry in caught)


def _answers(probed: Probed, label: Tensor) -> tuple[int, Tensor, Tensor]:
    return probed.logits.shape[1], probed.logits.argmax(dim=1), label


def count_answers(batches: Sequence[tuple[int, Tensor, Tensor]]) -> np.ndarray:
    """How often which class was answered: counts `[classes, classes]`, true classes in rows.

    Args:
        batches: the number of classes, what was predicted and what is right, `[batch]` each.
    """
    n_classes = batches[0][0]
    counts = np.zeros((n_classes, n_classes), dtype=np.int64)
    for _, prediction, label in batches:
        np.add.at(counts, (_checked(label.numpy(), n_classes), prediction.cpu().numpy()), 1)
    return counts


def _checked(labels: np.ndarray, n_classes: int) -> np.ndarray:
    if not ((labels >= 0) & (labels < n_classes)).all():
        raise NACError(
            f"validation data must have labels from 0 to {n_classes - 1}, the network's classes; "
            f"found {labels.min() if labels.min() < 0 else labels.max()}."
        )
    return labels


def _about_classes(counts: Any, n_network: int, n_data: Optional[int]) -> Iterator[str]:
    if n_data is not None and n_data != n_network:
        yield (
            f"the data has {n_data} classes and the network {n_network}. Are these the images that "
            "it was trained on?"
        )
    few = [count for count in counts.values() if count < _FEW]
    if few:
        yield (
            f"{len(few)} of {len(counts)} classes have fewer than {_FEW} fitting samples, as few "
            f"as {min(few)}: add training images of these classes."
        )


def _about_accuracy(answers: np.ndarray) -> Iterator[str]:
    """Whether the network knows these images at all."""
    from scipy.optimize import linear_sum_assignment

    n, right = int(answers.sum()), int(np.trace(answers))
    chance = answers.sum(axis=1).max() / n
    reordered = int(answers[linear_sum_assignment(answers, maximize=True)].sum())
    if reordered - right > _BETTER * n:
        yield (
            f"the network is right on {right / n:.1%} of validation samples, but would be on "
            f"{reordered / n:.1%} if its classes had another order. Its classes and those of the "
            "data are probably numbered differently."
        )
    elif binomial_interval(right, n)[0] <= chance:
        yield (
            f"the network is right on {right / n:.1%} of validation samples, no better than chance "
            f"({chance:.1%}). Check the weights, the transform and the labels."
        )


def _about_alarms(alarms: Optional[FalseAlarms]) -> Iterator[str]:
    if alarms is not None and not alarms.low <= alarms.level <= alarms.high:
        kind = "more" if alarms.rate > alarms.level else "fewer"
        yield (
            f"{alarms.rate:.1%} of test samples are called out-of-distribution, clearly {kind} "
            f"than {alarms.level:.1%}: test and validation data are not alike."
        )
