"""What the table's rows are made of: a detector of pytorch-ood, fed as OpenOOD feeds its own."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Optional, Sequence

import torch
from torch import Tensor, nn

from nac_openood.bench.scorer import Given
from nac_openood.bench.torch_ood.data import labelled
from nac_openood.bench.torch_ood.library import theirs

Point = Mapping[str, Any]

#: Numbers that a detector may make of a batch in one go.
_CHUNK = 2**26


class Adapter:
    """A detector: `fit` once, then `use` a point of hyperparameters, then `score`.

    Args:
        name: OpenOOD's name of the method.
        detectors: the module `pytorch_ood.detector`.
    """

    needs = "features"

    def __init__(self, name: str, detectors: Any) -> None:
        self.name, self.detectors = name, detectors
        self.net: nn.Module = nn.Identity()
        self.detector: Any = None

    def fit(self, given: Given) -> None:
        """Keep the network, and whatever no hyperparameter changes."""
        self.net = given.net

    def against(self, point: Point) -> Optional[str]:
        """Why a point cannot be used here, or None."""
        return None

    def usable(self, points: Sequence[Point]) -> list[Point]:
        """The points of a sweep that can be used here."""
        return [point for point in points if self.against(point) is None]

    def use(self, point: Point) -> None:
        """Make or set the detector."""
        raise NotImplementedError

    def release(self) -> None:
        """Let go of what was needed to change hyperparameters; they are final."""

    def score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outlier scores `[batch]` and logits `[batch, classes]` of a prepared batch."""
        raise NotImplementedError

    def hold(self, loader: Iterable[Any]) -> Iterable[Any]:
        """What of a validation loader is worth keeping for `outliers` of many points."""
        return loader

    def outliers(self, held: Iterable[Any]) -> Tensor:
        """Outlier scores `[samples]` of what `hold` held."""
        return torch.cat([self.score(x)[0].cpu() for x, _ in labelled(self.net, held)])

    def calling(self, doing: str) -> Any:
        """Around calls of the detector."""
        return theirs(self.name, doing)


class OnFeatures(Adapter):
    """A detector that looks at features and logits; the network is a `Head`."""

    def outlier(self, features: Tensor, logits: Tensor) -> Tensor:
        """Outlier scores `[batch]` of features `[batch, D]` and logits `[batch, classes]`."""
        raise NotImplementedError

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
        """Outlier scores `[samples]` of what `hold` held."""
        with torch.no_grad(), self.calling("scoring"):
            return torch.cat([self.outlier(*pair).cpu() for pair in held])

    def head_weights(self) -> tuple[Tensor, Tensor]:
        """Weight `[classes, D]` and bias `[classes]` of the head, on the CPU.

        Detectors work where their weights are, and on a GPU there may be no room for the features
        of a training set.
        """
        weight, bias = self.net.get_fc()  # type: ignore[operator]
        return torch.from_numpy(weight), torch.from_numpy(bias)


def in_parts(x: Tensor, numbers_each: int) -> tuple[Tensor, ...]:
    """A batch in parts, each of which makes no more than a bounded number of numbers."""
    return x.split(max(1, _CHUNK // max(1, numbers_each)))
