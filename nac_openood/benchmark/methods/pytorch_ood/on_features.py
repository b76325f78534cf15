"""Detectors of penultimate features, some of which also use the weights of the head."""

from __future__ import annotations

import copy
from typing import Optional, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from nac_openood.benchmark.methods.pytorch_ood import data
from nac_openood.benchmark.methods.pytorch_ood.adapter import OnFeatures, Point, in_parts
from nac_openood.benchmark.methods.scorer import Given
from nac_openood.benchmark.methods.sweep import check_neighbors, vim_dims


class _Fitted(OnFeatures):
    """Fitted once on training features and labels; has no hyperparameters."""

    detector_name = ""

    def fit(self, given: Given) -> None:
        super().fit(given)
        values, label = data.features(given.net, given.train)
        data.every_class(self.name, label, given.n_classes)
        self.detector = self.make()
        with self.calling("fitting"):
            self.detector.fit_features(values, label)

    def make(self) -> object:
        return getattr(self.detectors, self.detector_name)(None)


class MDS(_Fitted):
    """Mahalanobis distance to the nearest class."""

    detector_name = "Mahalanobis"


class RMDS(_Fitted):
    """Mahalanobis distance to the nearest class, relative to that to all training data."""

    detector_name = "RMD"


class SHE(_Fitted):
    """Inner product with the mean of the class's correct training features."""

    def make(self) -> object:
        """On the CPU: the detector moves all features to where its head is."""
        return self.detectors.SHE(None, copy.deepcopy(self.net).cpu())


class KNN(OnFeatures):
    """Distance to the K-th nearest training feature; all features have unit length."""

    def fit(self, given: Given) -> None:
        """Index the training features."""
        super().fit(given)
        values, label = data.features(given.net, given.train)
        self.size = len(values)
        # in place: the detector would make a copy of all features
        F.normalize(values, dim=1, out=values)
        self.detector = self.detectors.KNN(None, k=1, normalize=False)
        with self.calling("fitting"):
            self.detector.fit_features(values, label.clamp(min=0))

    def problem_with(self, point: Point) -> Optional[str]:
        """`K` must not exceed the size of the training set."""
        return check_neighbors(point["K"], self.size)

    def use(self, point: Point) -> None:
        """Set the neighbor."""
        self.detector.k = int(point["K"])

    def outlier(self, features: Tensor, logits: Tensor) -> Tensor:
        """Outlier scores of features scaled to unit length, as the training features are."""
        return self.detector.predict_features(F.normalize(features, dim=1))


class ViM(OnFeatures):
    """Energy less the norm outside the principal subspace."""

    def fit(self, given: Given) -> None:
        """Keep the training features: the detector is fitted for every `dim`."""
        super().fit(given)
        self.train = data.features(given.net, given.train)
        self.wide = self.train.values.shape[1]

    def problem_with(self, point: Point) -> Optional[str]:
        """`dim` must be smaller than the number of features."""
        if point["dim"] < self.wide:
            return None
        return f"dim={point['dim']} is not smaller than the {self.wide} dimensions of the features"

    def usable(self, points: Sequence[Point]) -> list[Point]:
        """Small networks get a smaller dimension; see `vim_dims`."""
        return [{"dim": dim} for dim in vim_dims([p["dim"] for p in points], self.wide)]

    def use(self, point: Point) -> None:
        """Set the dimension of the subspace."""
        if self.detector is not None and self.detector.d == point["dim"]:
            return
        weight, bias = self.head_weights()
        self.detector = self.detectors.ViM(None, d=int(point["dim"]), w=weight, b=bias)
        with self.calling("fitting"):
            self.detector.fit_features(*self.train)

    def release(self) -> None:
        """Free the training features."""
        del self.train


class DICE(OnFeatures):
    """Energy of a head without the weights that contribute least to training data."""

    def fit(self, given: Given) -> None:
        """Compute the mean training feature, which is all that the detector uses."""
        super().fit(given)
        total, count = torch.zeros(()), 0
        for x, _ in data.labelled(given.net, given.train):
            total, count = total.to(x.device) + x.double().sum(dim=0), count + len(x)
        self.mean = (total / count).float()[None]

    def use(self, point: Point) -> None:
        """Set the percentage of weights left out."""
        weight, bias = self.head_weights()
        self.detector = self.detectors.DICE(None, weight, bias, p=point["p"] / 100)
        with self.calling("fitting"):
            self.detector.fit_features(self.mean.cpu(), torch.zeros(1, dtype=torch.int64))
        self.size = weight.numel()

    def outlier(self, features: Tensor, logits: Tensor) -> Tensor:
        """In parts: the detector multiplies all features with all weights before it sums."""
        parts = in_parts(features, self.size)
        return torch.cat([self.detector.predict_features(part) for part in parts])


class ReAct(OnFeatures):
    """Energy of features clipped at a percentile of ID validation features."""

    def fit(self, given: Given) -> None:
        """Keep ID validation features."""
        super().fit(given)
        self.held = data.features(given.net, given.id_val).values

    def use(self, point: Point) -> None:
        """Set the percentile."""
        percentile = point["percentile"] / 100
        self.detector = self.detectors.ReAct(None, self.net, percentile=percentile)
        with self.calling("fitting"):
            self.detector.fit_feature_maps(self.held, torch.zeros(len(self.held)))

    def release(self) -> None:
        """Free the validation features."""
        del self.held

    def outlier(self, features: Tensor, logits: Tensor) -> Tensor:
        """Outlier scores of features, which the detector takes for maps."""
        return self.detector.predict_feature_maps(features)


class ASH(OnFeatures):
    """Energy of the largest features, all set to one value (ASH-B, as in OpenOOD)."""

    def use(self, point: Point) -> None:
        """Set the percentage of features that become zero."""
        percentile, head = point["percentile"] / 100, self.net
        self.detector = self.detectors.ASH(
            None, lambda maps: head(maps.flatten(1)), variant="ash-b", percentile=percentile
        )

    def outlier(self, features: Tensor, logits: Tensor) -> Tensor:
        """Outlier scores of features, given as maps of one pixel."""
        return self.detector.predict_feature_maps(features[:, :, None, None])


class GradNorm(OnFeatures):
    """Norm of the gradient of the head's weights."""

    def use(self, point: Point) -> None:
        """Has no hyperparameters; as in OpenOOD the gradient of the bias does not count."""
        self.detector = self.detectors.GradNorm(self.net, param_filter=lambda n: n == "fc.weight")

    def outlier(self, features: Tensor, logits: Tensor) -> Tensor:
        """Outlier scores of features."""
        return self.detector.predict(features)
