"""Turns scores into the probability that a prediction is correct; calibration errors.

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

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nac_openood.core.pvalues import PValues
from nac_openood.errors import NACError

#: Samples per bin, as in Outlier Exposure.
BIN_SIZE = 100
_LOG_LIMIT = 6.0  # temperatures between e^-6 and e^6
_UNUSUAL = 0.05  # p-values below it make a sample less credible


class Bins(NamedTuple):
    """Size, mean confidence and share of correct predictions of every bin, `[bins]` each."""

    size: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    def errors(self) -> dict[str, float]:
        """RMS and MAD calibration error, from 0 to 1."""
        gap, total = self.confidence - self.accuracy, self.size.sum()
        return {
            "RMS": float(np.sqrt(sum(self.size * gap**2) / total)),
            "MAD": float(sum(self.size * np.abs(gap)) / total),
        }


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
    from scipy.optimize import minimize_scalar

    exact = logits.double()

    def loss(log_temperature: float) -> float:
        scaled = exact / float(np.exp(log_temperature))
        return float(torch.nn.functional.cross_entropy(scaled, label))

    found = minimize_scalar(loss, bounds=(-_LOG_LIMIT, _LOG_LIMIT), method="bounded",
                            options={"xatol": 1e-8})  # fmt: skip
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
        from scipy.special import expit

        standard = (np.asarray(score, float) - self.center) / self.scale
        return expit(self.slope * standard + self.offset)

    @classmethod
    def fit(cls, score: np.ndarray, correct: np.ndarray) -> LogisticMap:
        """Fit the curve to scores and correctness of ID validation data, `[samples]` each.

        Targets are Platt's, slightly inside of 0 and 1, so that the curve stays finite if all
        predictions are correct. A score must not lower the confidence, so slopes below 0 become 0.
        """
        from scipy.optimize import minimize
        from scipy.special import expit

        score, right = np.asarray(score, float), np.asarray(correct, bool)
        if not np.isfinite(score).all():
            raise NACError("expected finite scores, got NaN or Inf.")
        n_right = int(right.sum())
        high, low = (n_right + 1) / (n_right + 2), 1 / (len(right) - n_right + 2)
        target = np.where(right, high, low)
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

    `min(1, p / 0.05)` for the p-value `p` of `nac_openood.core.pvalues`: 1 for the upper 95 % of
    ID data, and then falling to 0. Multiplied by the probability that the class is right if the
    sample is in-distribution, it is a confidence that also falls for inputs unlike the training
    data.

    Args:
        score: `[samples]`; higher means more in-distribution.
        id_val: scores of ID validation data, at least 16.
    """
    p = PValues(id_val)(torch.as_tensor(np.asarray(score, float)))
    return (p / _UNUSUAL).clamp(max=1.0).numpy()
