"""What a search found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional

from nac_openood.core.layer_config import LayerConfig
from nac_openood.detector.config import NACConfig


@dataclass(frozen=True)
class LayerPoint:
    """A candidate of one layer, scored by itself.

    Args:
        layer: its name.
        config: its settings.
        auroc: ID against OOD validation.
        fpr95: the same, OpenOOD's FPR@95: ID samples rejected when 95 % of the OOD samples are
            found.
        fpr95_in: the FPR@95 of most papers: OOD samples accepted when 95 % of the ID samples are
            kept.
        guard: AUROC of held-out training against ID validation, near 0.5 where it does not
            overfit; None without held-out readings.
    """

    layer: str
    config: LayerConfig
    auroc: float
    fpr95: float
    fpr95_in: float
    guard: Optional[float]


@dataclass(frozen=True)
class Candidate:
    """A joint candidate; `layers` lacks those that it leaves out. See `LayerPoint`."""

    layers: Mapping[str, LayerConfig]
    objective: float
    auroc: float
    fpr95: float
    fpr95_in: float
    guard: Optional[float]


@dataclass(frozen=True)
class SearchResult:
    """The ranking, and how it was found.

    Args:
        ranking: the best joint candidates, best first.
        landscape: every layer candidate by itself, in order.
        strategy: which was used.
        objective: what was maximized.
        guard: candidates whose guard AUROC is further than this from 0.5 were excluded; None
            excludes nothing.
        guard_limit: what `guard="auto"` would exclude; None without held-out readings.
        surrogate: whether the OOD validation set was made of in-distribution images.
        evaluated: how many joint candidates were evaluated.
        n_samples: how many samples the candidates were fitted on.
        seconds: how long it took.
    """

    ranking: tuple[Candidate, ...]
    landscape: tuple[LayerPoint, ...]
    strategy: str
    objective: str
    guard: Optional[float]
    guard_limit: Optional[float]
    surrogate: bool
    evaluated: int
    n_samples: int
    seconds: float = field(compare=False, default=0.0)

    @property
    def best(self) -> Candidate:
        """The winner."""
        return self.ranking[0]

    @property
    def overfits(self) -> bool:
        """Whether the winner tells held-out training from ID validation samples."""
        value, limit = self.best.guard, self.guard_limit
        return value is not None and limit is not None and abs(value - 0.5) > limit

    @property
    def layers(self) -> Mapping[str, LayerConfig]:
        """The winner's settings, as `NACDetector` takes them."""
        return self.best.layers

    def to_config(self) -> NACConfig:
        """The winner as a config to write down; nothing is left to search in it."""
        return NACConfig(layers=dict(self.layers), n_samples=self.n_samples)
