"""Detectors of logits."""

from __future__ import annotations

from typing import Mapping

import torch
from torch import Tensor

from nac_openood.benchmark.methods.pytorch_ood import data
from nac_openood.benchmark.methods.pytorch_ood.adapter import OnFeatures, Point
from nac_openood.benchmark.methods.scorer import Given


class _OnLogits(OnFeatures):
    def outlier(self, features: Tensor, logits: Tensor) -> Tensor:
        return self.detector.predict_logits(logits)


class _Unfitted(_OnLogits):
    """Looks at no data beforehand; `arguments` are the detector's names of hyperparameters."""

    detector_name = ""
    arguments: Mapping[str, str] = {}

    def use(self, point: Point) -> None:
        given = {theirs: point[name] for name, theirs in self.arguments.items()}
        self.detector = getattr(self.detectors, self.detector_name)(None, **given)


class MSP(_Unfitted):
    """The largest softmax probability."""

    detector_name = "MaxSoftmax"


class MLS(_Unfitted):
    """The largest logit."""

    detector_name = "MaxLogit"


class EBO(_Unfitted):
    """Energy."""

    detector_name, arguments = "EnergyBased", {"temperature": "t"}


class GEN(_Unfitted):
    """Generalized entropy; as in OpenOOD, an `M` above the number of classes means all."""

    detector_name, arguments = "GEN", {"gamma": "gamma", "M": "M"}


class TempScaling(_OnLogits):
    """Softmax at the temperature with the lowest loss on ID validation data."""

    def fit(self, given: Given) -> None:
        """Find the temperature, starting at 1.5 as OpenOOD does."""
        super().fit(given)
        held = data.logits(given.net, given.id_val)
        self.detector = self.detectors.TemperatureScaling(None)
        with torch.no_grad():
            self.detector.t.fill_(1.5)
        with torch.enable_grad(), self.calling("fitting"):
            self.detector.fit_logits(held.values.float(), held.label)


class KLM(_OnLogits):
    """Divergence from the mean posteriors of ID validation data."""

    def fit(self, given: Given) -> None:
        """Compute the mean posterior of each predicted class."""
        super().fit(given)
        held = data.logits(given.net, given.id_val)
        self.detector = self.detectors.KLMatching(None)
        with self.calling("fitting"):
            self.detector.fit_logits(held.values.double())

    def outlier(self, features: Tensor, logits: Tensor) -> Tensor:
        """In float64, as in OpenOOD: the divergence of confident predictions is tiny."""
        return self.detector.predict_logits(logits.double())


class OpenMax(_OnLogits):
    """Extreme value statistics of the distances to the class centers of training logits."""

    def fit(self, given: Given) -> None:
        """Fit Weibull models of correct predictions with OpenOOD's tail, alpha and distance."""
        super().fit(given)
        values, label = data.logits(given.net, given.train)
        right = values.argmax(dim=1) == label
        # float64: the detector adds 10,000 to distances, after which float32 has 3 decimals left
        values, label = values[right].double(), label[right]
        data.every_class(self.name, label, given.n_classes, "sample with a correct prediction")
        alpha = min(3, given.n_classes)
        self.detector = self.detectors.OpenMax(None, tailsize=20, alpha=alpha, euclid_weight=1.0)
        with self.calling("fitting"):
            self.detector.fit_logits(values, label)
        centers = [values[label == c].mean(dim=0) for c in range(given.n_classes)]
        self.centers = torch.stack(centers)

    def outlier(self, features: Tensor, logits: Tensor) -> Tensor:
        """Score the batch together with the class centers.

        The detector measures distances only to classes that are predicted somewhere in a batch
        and takes 0 for the others, so scores would depend on the batch. Each center is predicted
        as its class, so with them all classes occur.
        """
        both = torch.cat([logits.double(), self.centers.to(logits.device)])
        return self.detector.predict_logits(both)[: len(logits)]
