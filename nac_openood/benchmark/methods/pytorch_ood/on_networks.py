"""Detectors that read layers inside the network or change its input."""

from __future__ import annotations

import torch
from torch import Tensor

from nac_openood.benchmark.methods.pytorch_ood import data, maps
from nac_openood.benchmark.methods.pytorch_ood.adapter import Adapter, Point
from nac_openood.benchmark.methods.scorer import Given
from nac_openood.network.inputs import device_of, logits_of
from nac_openood.network.replica import run

#: What OpenOOD assumes if it does not know how images were normalized.
_STD = (0.5, 0.5, 0.5)


class OnNetwork(Adapter):
    """A detector that is given the network and images."""

    def plain(self, x: Tensor) -> Tensor:
        """Logits of a plain pass."""
        return logits_of(run(self.net, x), x)


class ODIN(OnNetwork):
    """Softmax at a temperature, of an image moved towards its predicted class."""

    def fit(self, given: Given) -> None:
        """Keep the scale of the channels."""
        super().fit(given)
        self.std = list(given.std or _STD)

    def use(self, point: Point) -> None:
        """Set the temperature and the step."""
        self.detector = self.detectors.ODIN(
            self._call, eps=point["noise"], temperature=point["temperature"], norm_std=self.std
        )

    def score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outlier scores and logits; the first of the detector's two passes has the plain image."""
        self.passes: list[Tensor] = []
        with self.calling("scoring"):
            outlier = self.detector.predict(x)
        return outlier, self.passes[0]

    def _call(self, x: Tensor) -> Tensor:
        logits = self.plain(x)
        self.passes.append(logits.detach())
        return logits


class MDSEnsemble(OnNetwork):
    """Mahalanobis distance in an early layer, of an image moved towards its predicted class.

    OpenOOD's ensemble has one member, the spatial mean of the first stage's input. That is
    `MahalanobisODIN`; `MultiMahalanobis` could not move the image.
    """

    def fit(self, given: Given) -> None:
        """Compute means and covariance."""
        super().fit(given)
        (self.stage,) = maps.stages(self.name, self.net, "layer1")
        values, label = data.map_batches(self.net, given.train, self._encode)
        data.every_class(self.name, label, given.n_classes)
        self.detector = self.detectors.MahalanobisODIN(self._encode, norm_std=list(_STD))
        device = device_of(self.net)
        with self.calling("fitting"):
            self.detector.fit_features(values.to(device), label.to(device))

    def use(self, point: Point) -> None:
        """Set the step."""
        self.detector.eps = point["noise"]

    def score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outlier scores and logits."""
        with self.calling("scoring"):
            outlier = self.detector.predict(x)
        with torch.no_grad():
            return outlier, self.plain(x)

    def _encode(self, x: Tensor) -> Tensor:
        return maps.input_of(self.net, self.stage, x).flatten(2).mean(dim=2).float()


class RankFeat(OnNetwork):
    """Energy without the largest singular value of the maps of the last two stages."""

    def fit(self, given: Given) -> None:
        """Find the stages."""
        super().fit(given)
        self.stages = maps.stages(self.name, self.net, "layer3", "layer4")

    def use(self, point: Point) -> None:
        """Set the temperature of the energy."""
        # OpenOOD averages the logits of both stages, so the detector has to return logits
        self.detector = self.detectors.RankFeat(None, self._rest, detector=lambda logits: logits)
        self.energy = self.detectors.EnergyBased(None, t=point["temperature"])

    @torch.no_grad()
    def score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outlier scores and logits."""
        logits, outputs = maps.outputs(self.net, self.stages, x, copies=True)
        fused = torch.zeros_like(logits, dtype=torch.float32)
        with self.calling("scoring"):
            for stage, here in zip(self.stages, outputs):
                self.stage, self.x = stage, x
                fused += self.detector.predict_feature_maps(here.float().contiguous())
            return self.energy.predict_logits(fused / len(outputs)), logits

    def _rest(self, changed: Tensor) -> Tensor:
        """Logits of a pass in which `changed` replaces the output of the stage."""
        changed = changed.to(self.x.dtype)
        output = run(self.net, self.x, on_output=[(self.stage, lambda *_: changed)])
        return logits_of(output, self.x).float()
