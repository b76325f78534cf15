"""The base of all adapters: a detector of pytorch-ood, given what OpenOOD gives its own."""

from __future__ import annotations

from typing import Any, Iterable, Optional, Sequence

import torch
from torch import Tensor, nn

from nac_openood.benchmark.methods.pytorch_ood import library
from nac_openood.benchmark.methods.pytorch_ood.data import labelled
from nac_openood.benchmark.methods.scorer import Given
from nac_openood.benchmark.methods.sweep import Point

#: How many numbers a detector may compute at a time.
_CHUNK = 2**26


class Adapter:
    """A detector: call `fit` once, then `use` with hyperparameters, then `score`.

    Args:
        name: OpenOOD's name of the method.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.net: nn.Module = nn.Identity()
        self.detector: Any = None

    @staticmethod
    def implementation() -> str:
        """Whose code computes the score; an adapter that does so itself says its own name.

        Raises:
            Absent: pytorch-ood is not installed.
        """
        library.detectors()
        return f"pytorch-ood {library.version()}"

    @property
    def detectors(self) -> Any:
        """The module `pytorch_ood.detector`."""
        return library.detectors()

    def fit(self, given: Given) -> None:
        """Keep the network, and compute what does not depend on hyperparameters."""
        self.net = given.net

    def problem_with(self, point: Point) -> Optional[str]:
        """Why these hyperparameters cannot be used with this data, or None if they can."""
        return None

    def usable(self, points: Sequence[Point]) -> list[Point]:
        """The points of a sweep that can be used with this data."""
        return [point for point in points if self.problem_with(point) is None]

    def use(self, point: Point) -> None:
        """Make the detector with these hyperparameters, or change them; not if it has none."""

    def release(self) -> None:
        """Free what was only needed to change hyperparameters, which are final now."""

    def score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outlier scores `[batch]` and logits `[batch, classes]` of a prepared batch."""
        raise NotImplementedError

    def hold(self, loader: Iterable[Any]) -> Iterable[Any]:
        """What to keep of a validation loader, for `outliers` of many points."""
        return loader

    def outliers(self, held: Iterable[Any]) -> Tensor:
        """Outlier scores `[samples]` of what `hold` returned."""
        return torch.cat([self.score(x)[0].cpu() for x, _ in labelled(self.net, held)])

    def calling(self, doing: str) -> Any:
        """A context for calls of the detector, which makes its errors name the method."""
        return library.theirs(self.name, doing)


class OnFeatures(Adapter):
    """A detector of features and logits; the network is a `Head`."""

    def outlier(self, features: Tensor, logits: Tensor) -> Tensor:
        """Outlier scores `[batch]` of features `[batch, D]` and logits `[batch, classes]`."""
        return self.detector.predict_features(features)

    def score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outlier scores `[batch]` and logits `[batch, classes]` of features `[batch, D]`."""
        with torch.no_grad():
            logits = self.net(x).float()
            with self.calling("scoring"):
                return self.outlier(x.float(), logits), logits

    def hold(self, loader: Iterable[Any]) -> Iterable[Any]:
        """Features and logits."""
        with torch.no_grad():
            return [(x.float(), self.net(x).float()) for x, _ in labelled(self.net, loader)]

    def outliers(self, held: Iterable[Any]) -> Tensor:
        """Outlier scores `[samples]` of what `hold` returned."""
        with torch.no_grad(), self.calling("scoring"):
            return torch.cat([self.outlier(*pair).cpu() for pair in held])

    def head_weights(self) -> tuple[Tensor, Tensor]:
        """Weight `[classes, D]` and bias `[classes]` of the head, on the CPU.

        Detectors work where their weights are, and the features of a training set may not fit on
        a GPU.
        """
        weight, bias = self.net.get_fc()  # type: ignore[operator]
        return torch.from_numpy(weight), torch.from_numpy(bias)


def in_parts(x: Tensor, numbers_each: int) -> tuple[Tensor, ...]:
    """Split a batch so that no part computes too many numbers at a time."""
    return x.split(max(1, _CHUNK // max(1, numbers_each)))
