"""What an OOD method is given and what it gives back, whoever wrote it.

A method that looks at nothing but the penultimate features is given the *head* as its network and
features as its images: all such methods share one pass over the network and never notice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterable, Mapping, NamedTuple, Optional, Protocol

import numpy as np
from torch import nn


class Scored(NamedTuple):
    """A data set's scores, predictions and labels as arrays `[samples]`; higher = more ID.

    `layers` holds scores `[samples]` by layer, of methods that have them.
    """

    score: np.ndarray
    prediction: np.ndarray
    label: np.ndarray
    layers: Mapping[str, np.ndarray] = {}


@dataclass(frozen=True)
class Given:
    """What a method may look at before the test data.

    Args:
        net: the network, in evaluation mode on its device; for a method that needs features only,
            its `Head`.
        id_name: of the in-distribution data, as OpenOOD calls it.
        n_classes: of the in-distribution data.
        train: batches `{'data', 'label'}` of training images (or features) under the test
            transform, in order.
        id_val: the same of ID validation data.
        ood_val: the same of OOD validation data; None where there is none, and nothing can be
            searched.
        std: of the channels, by which images were normalized; None where unknown.
        seed: of whatever a method draws at random.
        progress: whether to show progress bars; None where there is a terminal.
    """

    net: nn.Module
    id_name: str
    n_classes: int
    train: Iterable[Any]
    id_val: Iterable[Any]
    ood_val: Optional[Iterable[Any]]
    std: Optional[tuple[float, ...]] = None
    seed: int = 0
    progress: Optional[bool] = None


@dataclass(frozen=True)
class Fit:
    """How a method was set up.

    Args:
        hyperparameters: in use, as JSON values by name; enough to set it up again without a
            search.
        search: what a search told, as JSON values, e.g. `{"auroc": 0.81, "points": 5}`; None
            where nothing was searched.
    """

    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    search: Optional[Mapping[str, Any]] = None


class Scorer(Protocol):
    """An OOD method: set up once, then asked for scores."""

    #: "features" (works on penultimate features and the head) or "network".
    needs: str
    #: Whose code runs, with its version, e.g. "OpenOOD 1.5".
    implementation: str
    #: What it was told beyond its name, as JSON values: other settings, other results.
    settings: Mapping[str, Any]

    def setup(self, given: Given, chosen: Optional[Mapping[str, Any]] = None) -> Fit:
        """Fit and search; `chosen` are hyperparameters of an earlier search, used as they are."""

    def score(self, loader: Iterable[Any]) -> Scored:
        """Score the batches of a loader that yields what `Given.train` yields."""
