"""Detectors that look at penultimate features, some with the head's weights."""

from __future__ import annotations

import copy
from typing import Optional, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from nac_openood.bench.scorer import Given
from nac_openood.bench.sweep import vim_dims
from nac_openood.bench.torch_ood import data
from nac_openood.bench.torch_ood.adapter import OnFeatures, Point, in_parts


class _Fitted(OnFeatures):
    """Fitted once on training features and labels; nothing to choose."""

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

    def use(self, point: Point) -> None:
        pass

    def outlier(self, features: Tensor, logits: Tensor) -> Tensor:
        scores: Tensor = self.detector.predict_features(features)
        return scores


class MDS(_Fitted):
    """Mahalanobis distance to the nearest class."""

    detector_name = "Mahalanobis"


class RMDS(_Fitted):
    """The same, relative to that of all training data."""

    detector_name = "RMD"


class SHE(_Fitted):
    """Inner product with the mean of the class's correct training features."""

    def make(self) -> object:
        """It asks the head for classes, and moves all features to where the head is."""
        return self.detectors.SHE(None, copy.deepcopy(self.net).cpu())


class KNN(OnFeatures):
    """Distance to the K-th nearest training feature, all of unit length."""

    def fit(self, given: Given) -> None:
        """Index the training features; `K` is asked for later."""
        super().fit(given)
        values, label = data.features(given.net, given.train)
        self.size = len(values)
        # in place, and not by the detector: its copy would be as large as the features
        F.normalize(values, dim=1, out=values)
        self.detector = self.detectors.KNN(None, k=1, normalize=False)
        with self.calling("fitting"):
            self.detector.fit_features(values, label.clamp(min=0))

    def against(self, point: Point) -> Optional[str]:
        """`K` must not exceed the training set."""
        if point["K"] <= self.size:
            return None
        return f"K={point['K']} exceeds the {self.size} training images"

    def use(self, point: Point) -> None:
        """The neighbor."""
        self.detector.k = int(point["K"])

    def outlier(self, features: Tensor, logits: Tensor) -> Tensor:
        """Of features of unit length, as the training features are."""
        scores: Tensor = self.detector.predict_features(F.normalize(features, dim=1))
        return scores


class ViM(OnFeatures):
    """Energy less the norm outside the principal subspace."""

    def fit(self, given: Given) -> None:
        """Keep the training features: the detector starts anew for every `dim`."""
        super().fit(given)
        self.train = data.features(given.net, given.train)
        self.wide = self.train.values.shape[1]

    def against(self, point: Point) -> Optional[str]:
        """`dim` must leave something outside of the subspace."""
        if point["dim"] < self.wide:
            return None
        return f"dim={point['dim']} leaves nothing of features with {self.wide} dimensions"

    def usable(self, points: Sequence[Point]) -> list[Point]:
        """Small networks get a dimension of their own."""
        return [{"dim": dim} for dim in vim_dims([p["dim"] for p in points], self.wide)]

    def use(self, point: Point) -> None:
        """The dimension of the subspace."""
        if self.detector is not None and self.detector.d == point["dim"]:
            return
        weight, bias = self.head_weights()
        self.detector = self.detectors.ViM(None, d=int(point["dim"]), w=weight, b=bias)
        with self.calling("fitting"):
            self.detector.fit_features(*self.train)

    def release(self) -> None:
        """The training features."""
        del self.train

    def outlier(self, features: Tensor, logits: Tensor) -> Tensor:
        """Of features."""
        scores: Tensor = self.detector.predict_features(features)
        return scores


class DICE(OnFeatures):
    """Energy of a head without the weights that contribute least to training data."""

    def fit(self, given: Given) -> None:
        """The mean training feature, which is all that the detector takes from them."""
        super().fit(given)
        total, count = torch.zeros(()), 0
        for x, _ in data.labelled(given.net, given.train):
            total, count = total.to(x.device) + x.double().sum(dim=0), count + len(x)
        if not count:
            raise data.nothing_to_fit_on()
        self.mean = (total / count).float()[None]

    def use(self, point: Point) -> None:
        """The percentage of weights left out."""
        weight, bias = self.head_weights()
        self.detector = self.detectors.DICE(None, weight, bias, p=point["p"] / 100)
        with self.calling("fitting"):
            self.detector.fit_features(self.mean.cpu(), torch.zeros(1, dtype=torch.int64))
        self.size = weight.numel()

    def outlier(self, features: Tensor, logits: Tensor) -> Tensor:
        """In parts: the detector multiplies every feature with every weight before it sums."""
        parts = in_parts(features, self.size)
        return torch.cat([self.detector.predict_features(part) for part in parts])


class ReAct(OnFeatures):
    """Energy of features clipped at a percentile of ID validation features."""

    def fit(self, given: Given) -> None:
        """Keep ID validation features."""
        super().fit(given)
        self.held = data.features(given.net, given.id_val).values

    def use(self, point: Point) -> None:
        """The percentile."""
        percentile = point["percentile"] / 100
        self.detector = self.detectors.ReAct(None, self.net, percentile=percentile)
        with self.calling("fitting"):
            self.detector.fit_feature_maps(self.held, torch.zeros(len(self.held)))

    def release(self) -> None:
        """The validation features."""
        del self.held

    def outlier(self, features: Tensor, logits: Tensor) -> Tensor:
        """Of features, as maps without extent."""
        scores: Tensor = self.detector.predict_feature_maps(features)
        return scores


class ASH(OnFeatures):
    """Energy of features of which the largest are kept, all alike (ASH-B, as in OpenOOD)."""

    def use(self, point: Point) -> None:
        """The percentage set to zero."""
        percentile, head = point["percentile"] / 100, self.net
        self.detector = self.detectors.ASH(
            None, lambda maps: head(maps.flatten(1)), variant="ash-b", percentile=percentile
        )

    def outlier(self, features: Tensor, logits: Tensor) -> Tensor:
        """Of features, as maps of one pixel."""
        scores: Tensor = self.detector.predict_feature_maps(features[:, :, None, None])
        return scores


class GradNorm(OnFeatures):
    """Size of the gradient of the head's weights."""

    def use(self, point: Point) -> None:
        """Nothing to choose; as in OpenOOD the bias does not count."""
        self.detector = self.detectors.GradNorm(self.net, param_filter=lambda n: n == "fc.weight")

    def outlier(self, features: Tensor, logits: Tensor) -> Tensor:
        """Of features."""
        scores: Tensor = self.detector.predict(features)
        return scores
