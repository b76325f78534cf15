"""NAC+'s evidence about activations as an outlier detector of scikit-learn."""

from __future__ import annotations

from numbers import Real
from typing import Any, Union

import numpy as np
import torch
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from nac_openood.core.fusion import TailEstimate
from nac_openood.core.layer_config import whole_number
from nac_openood.core.plus_layer import LayerEvidence
from nac_openood.core.pvalues import PValues
from nac_openood.errors import NACError

#: A third of them rank, and the others are split into folds.
_MIN_SAMPLES = 16


class NACOutlierDetector(OutlierMixin, BaseEstimator):
    """Finds rows that are unlike the training data, with the interface of `IsolationForest`.

    The features may be anything: activations of a network, embeddings, a table. They are
    standardized, except for those that never vary. Two statistics of a row become p-values: how
    well its values are covered one by one, and its Mahalanobis distance from the mean. The score is
    the sum of the logarithms of both. These use cross-fitting: every training row is compared with
    rows of the other folds. Every third training row is left out of all this: the p-value of a
    score is its rank among theirs, so that `P(p <= a) <= a` for new rows of the same distribution.

    Args:
        contamination: the share of outliers in the training data, above 0 and at most 0.5, which
            sets `offset_`; "auto" assumes that there are none and rejects at most 5 % of new data
            from the same distribution, those with a p-value of at most 0.05. That takes 55 training
            rows; with `n` fewer, it rejects up to a share of `3 / n`.
        n_folds: number of folds of the cross-fitting.

    Attributes:
        offset_: `predict` calls rows with a lower score outliers.
        n_features_in_: number of features.

    Examples:
        >>> detector = NACOutlierDetector().fit(train_features)
        >>> detector.predict(features)  # 1 or -1
    """

    def __init__(self, *, contamination: Union[str, float] = "auto", n_folds: int = 5) -> None:
        self.contamination = contamination
        self.n_folds = n_folds

    def fit(self, X: Any, y: Any = None) -> NACOutlierDetector:
        """Fit on rows `[samples, features]`, at least 16 of them; `y` is ignored."""
        X = validate_data(self, X, dtype=np.float64)
        if len(X) < _MIN_SAMPLES:
            raise NACError(f"expected at least {_MIN_SAMPLES} samples, got {len(X)} sample(s).")
        share: Any = self.contamination
        if share != "auto" and not (isinstance(share, Real) and 0 < float(share) <= 0.5):
            text = "`contamination` must be 'auto' or a number above 0 and at most 0.5, got "
            raise NACError(f"{text}{share!r}.")
        n_folds = whole_number("n_folds", self.n_folds, 2)
        ranking = np.arange(len(X)) % 3 == 0
        self._scaler = StandardScaler().fit(X[~ranking])
        everything = torch.from_numpy(self._scaler.transform(X))
        rows = everything[~ranking]
        self._evidence = _evidence(rows)
        fold = torch.arange(len(rows)) % n_folds
        held_out: dict[str, Tensor] = {}
        for k in range(min(n_folds, len(rows))):
            for name, part in _parts(_evidence(rows[fold != k]), rows[fold == k]).items():
                held_out.setdefault(name, torch.empty_like(rows[:, 0]))[fold == k] = part
        self._estimates = {name: TailEstimate(part) for name, part in held_out.items()}
        own = self._scores(everything[ranking])
        self._p_values = PValues(own)
        if share == "auto":  # with too few rows for alarms at 5 %, below all of them
            self.offset_ = float(self._p_values.limits.clamp(min=own.min()))
        else:
            self.offset_ = float(np.percentile(self._scores(everything).numpy(), 100 * share))
        return self

    def score_samples(self, X: Any) -> np.ndarray:
        """Scores `[samples]`, at most 0; higher = more like the training data."""
        return self._scores(self._validated(X)).numpy()

    def p_value(self, X: Any) -> np.ndarray:
        """How unusual each row is, `[samples]`: at most a share `p` of new data is below `p`."""
        rows = self._validated(X)
        return self._p_values(self._scores(rows)).numpy()

    def decision_function(self, X: Any) -> np.ndarray:
        """`score_samples(X) - offset_`: negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """1 for inliers, -1 for outliers, `[samples]`."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def _validated(self, X: Any) -> Tensor:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return torch.from_numpy(self._scaler.transform(X))

    def _scores(self, rows: Tensor) -> Tensor:
        parts = _parts(self._evidence, rows)
        return torch.stack([self._estimates[n].log(part) for n, part in parts.items()]).sum(dim=0)


def _evidence(rows: Tensor) -> LayerEvidence:
    evidence = LayerEvidence.empty(rows.shape[1], rows.device)
    evidence.update(rows)
    return evidence


def _parts(evidence: LayerEvidence, rows: Tensor) -> dict[str, Tensor]:
    """Coverage, and distance unless there are too many features for it, `[samples]` each."""
    parts = {"coverage": evidence.coverage.score(rows)}
    if evidence.moments is not None:
        parts["distance"] = evidence.moments.score(rows)
    return parts
