"""NAC as detectors of pytorch-ood, which must be installed to import this file.

In pytorch-ood, higher scores mean more out-of-distribution.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping, Optional

import torch
from pytorch_ood import api
from torch import Tensor

from nac_openood.adapters.scikit_learn import NACOutlierDetector
from nac_openood.core.reading import Reading
from nac_openood.detector.batches import DEFAULT_SIZE, SampleCount
from nac_openood.detector.detector import NACDetector


class PyTorchOODNetwork(api.StructuredDetector):
    """A `NACDetector` with pytorch-ood's interface of a detector of a network.

    Examples:
        >>> nac = PyTorchOODNetwork(NACDetector(net, "auto", rule="nac_plus"), val_loader)
        >>> nac.fit(train_loader)
        >>> metrics.update(nac(x), y)

    Args:
        detector: fitted or not.
        calibration: batches of held-out in-distribution data for `NACDetector.calibrate`; NAC+
            warns without them.
        n_samples: size of the fitting subset, as in `NACDetector.fit`.
    """

    requires_fit = True

    def __init__(
        self,
        detector: NACDetector,
        calibration: Optional[Iterable[Any]] = None,
        *,
        n_samples: SampleCount = DEFAULT_SIZE,
    ) -> None:
        self.detector, self.calibration, self.n_samples = detector, calibration, n_samples

    def fit(self, data_loader: Iterable[Any]) -> PyTorchOODNetwork:
        """Fit on batches `(x, y)` of in-distribution training data, and calibrate."""
        self.detector.fit(data_loader, self.n_samples)
        return self._calibrated()

    def fit_structured(self, readings: Mapping[str, Reading]) -> PyTorchOODNetwork:
        """Fit on what `NACDetector.read_loader` returns, and calibrate."""
        self.detector.fit_readings(readings)
        return self._calibrated()

    def _calibrated(self) -> PyTorchOODNetwork:
        if self.calibration is not None:
            self.detector.calibrate(self.calibration)
        return self

    def predict(self, x: Tensor) -> Tensor:
        """Outlier scores `[batch]` of a batch `[batch, ...]`."""
        self._check()
        return -self.detector.score(x)

    def predict_structured(self, readings: Mapping[str, Reading]) -> Tensor:
        """Outlier scores `[samples]` of what `NACDetector.read_loader` returns."""
        self._check()
        return -self.detector.score_readings(readings)

    @property
    def device(self) -> Optional[torch.device]:
        """The device of the network."""
        return next((p.device for p in self.detector.net.parameters()), None)

    def to(self, device: Any) -> PyTorchOODNetwork:
        """Move the network; the fitted statistics follow it."""
        self.detector.net.to(device)
        return self

    def _check(self) -> None:
        if self.detector.rule_ is None:
            raise api.RequiresFittingException


class PyTorchOODFeatures(api.FeaturesDetector):
    """A `NACOutlierDetector` with pytorch-ood's interface of a detector of features.

    Args:
        encoder: from a batch of inputs to features `[batch, D]`; not needed for `fit_features` and
            `predict_features`.
    """

    requires_fit = True

    def __init__(self, encoder: Optional[Callable[[Tensor], Tensor]] = None) -> None:
        self.encoder = encoder
        self.detector: Optional[NACOutlierDetector] = None

    def fit(self, data_loader: Iterable[Any]) -> PyTorchOODFeatures:
        """Fit on the features of batches `(x, y)`."""
        found = [(self._encoded(x), y) for x, y in data_loader]
        return self.fit_features(torch.cat([z for z, _ in found]), torch.cat([y for _, y in found]))

    def fit_features(self, x: Tensor, y: Optional[Tensor] = None) -> PyTorchOODFeatures:
        """Fit on features `[samples, D]`; negative labels mark outliers, which are left out."""
        rows = x if y is None else x[(y >= 0).to(x.device)]
        self.detector = NACOutlierDetector().fit(rows.detach().cpu().numpy())
        return self

    def predict(self, x: Tensor) -> Tensor:
        """Outlier scores `[batch]` of a batch of inputs."""
        scores: Tensor = self.predict_features(self._encoded(x))
        return scores

    def predict_features(self, x: Tensor) -> Tensor:
        """Outlier scores `[batch]` of features `[batch, D]`, on their device."""
        if self.detector is None:
            raise api.RequiresFittingException
        scores = self.detector.score_samples(x.detach().cpu().numpy())
        return -torch.from_numpy(scores).to(x.device)

    def _encoded(self, x: Tensor) -> Tensor:
        if self.encoder is None:
            raise api.ModelNotSetException("this detector has no `encoder`: use predict_features.")
        with torch.no_grad():
            return self.encoder(x if self.device is None else x.to(self.device))
