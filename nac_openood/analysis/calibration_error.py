"""RMS and MAD calibration error, as Hendrycks et al. (Outlier Exposure, ICLR 2019) define them.

Samples are sorted by confidence and cut into bins. In each bin, the gap is the difference between
the mean confidence and the share of correct predictions. RMS is the root of the mean squared gap
over samples, MAD is the mean absolute gap. OOD samples count as wrong: no class is right for them.

Hendrycks et al. put 100 samples into each bin. Their code leaves out the last bin, that of the most
confident samples; their formulas do not, and neither does this file.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Sequence

import numpy as np

from nac_openood.errors import NACError

#: Samples per bin, as in Outlier Exposure.
BIN_SIZE = 100


class Bin(NamedTuple):
    """The samples of a bin.

    Args:
        n: how many there are.
        confidence: their mean confidence.
        accuracy: the share of correct predictions among them.
    """

    n: int
    confidence: float
    accuracy: float

    @property
    def gap(self) -> float:
        """How overconfident the bin is; negative if it is underconfident."""
        return self.confidence - self.accuracy


def equal_mass_bins(
    confidence: np.ndarray, correct: np.ndarray, *, size: int = BIN_SIZE
) -> list[Bin]:
    """Bins of `size` samples each; the last one also takes the rest.

    Samples of equal confidence share their accuracy, so their order does not matter.

    Args:
        confidence: from 0 to 1, `[samples]`.
        correct: whether each prediction is correct, `[samples]`.
        size: samples per bin.
    """
    confidence, correct = _checked(confidence, correct)
    if size < 1:
        raise NACError(f"`size` must be at least 1, got {size}.")
    values, index = np.unique(confidence, return_inverse=True)
    shared = np.bincount(index, correct) / np.bincount(index)
    order = np.argsort(index, kind="stable")
    starts = [i * size for i in range(max(1, len(order) // size))]
    parts = [order[a:b] for a, b in zip(starts, [*starts[1:], len(order)])]
    return [Bin(len(p), values[index[p]].mean(), shared[index[p]].mean()) for p in parts]


def rms_error(bins: Sequence[Bin]) -> float:
    """Root mean square calibration error, from 0 to 1."""
    return math.sqrt(sum(b.n * b.gap**2 for b in bins) / sum(b.n for b in bins))


def mad_error(bins: Sequence[Bin]) -> float:
    """Mean absolute deviation calibration error, from 0 to 1."""
    return sum(b.n * abs(b.gap) for b in bins) / sum(b.n for b in bins)


def _checked(confidence: np.ndarray, correct: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    confidence, correct = np.asarray(confidence, float), np.asarray(correct, float)
    if confidence.ndim != 1 or confidence.shape != correct.shape or not len(confidence):
        raise NACError(
            "expected a confidence and a correctness for each of at least one sample, got "
            f"{list(confidence.shape)} and {list(correct.shape)}."
        )
    if not ((confidence >= 0) & (confidence <= 1)).all():  # NaN ends here, too
        raise NACError(
            f"expected confidences from 0 to 1, got {confidence.min():g} to {confidence.max():g}. "
            "Map scores to probabilities first."
        )
    return confidence, correct
