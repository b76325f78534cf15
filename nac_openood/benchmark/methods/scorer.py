"""What an OOD method is given and what it returns, whoever wrote it.

A method that needs penultimate features only is given the *head* as its network and features as
its samples, so all such methods share one pass over the network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterable, Mapping, Optional, Protocol

import numpy as np
from torch import nn

from nac_openood.detector.outcomes import Scores


@dataclass(frozen=True)
class Given:
    """What a method may look at before the test data.

    Args:
        net: the network, on its device; for a method that needs features only, its `Head`.
        id_name: name of the in-distribution data, e.g. OpenOOD's "cifar10".
        n_classes: number of classes of the in-distribution data.
        train: loader of the training samples (or features), in order and without augmentation.
        id_val: loader of the ID validation data.
        ood_val: loader of the OOD validation data, or a `SurrogateLoader` in its place; None
            without a search.
        search: whether to search hyperparameters; otherwise methods use their defaults.
        std: standard deviation per channel by which images were normalized; None if unknown.
        seed: random seed.
        progress: whether to show progress bars; None shows them on a terminal.
    """

    net: nn.Module
    id_name: str
    n_classes: int
    train: Iterable[Any]
    id_val: Iterable[Any]
    ood_val: Optional[Iterable[Any]]
    search: bool = True
    std: Optional[tuple[float, ...]] = None
    seed: int = 0
    progress: Optional[bool] = None


@dataclass(frozen=True)
class Fit:
    """How a method was set up.

    Args:
        hyperparameters: those in use, as JSON values by name; enough to set the method up again
            without a search.
        search: what the search reports, as JSON values, e.g. `{"auroc": 0.81, "points": 5}`; None
            if there was no search.
        advice: how the method compares with simpler ones on validation data, as JSON values; see
            `nac_openood.search.advice.Advice.to_dict`.
        advice_seconds: how long that took, which is no part of setting the method up.
    """

    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    search: Optional[Mapping[str, Any]] = None
    advice: Optional[Mapping[str, Any]] = None
    advice_seconds: float = 0.0


def joined_scores(parts: Iterable[Scores]) -> Scores:
    """The scores of a dataset, from those of its batches."""
    score, prediction, label = (np.concatenate(column) for column in list(zip(*parts))[:3])
    return Scores(score, prediction, label)


class Scorer(Protocol):
    """An OOD method: set up once, then asked for scores."""

    #: Whose code runs, with its version, e.g. "OpenOOD 1.5".
    implementation: str
    #: Everything else that its scores depend on, as JSON values: results are reused only if
    #: these are equal.
    settings: Mapping[str, Any]

    def setup(self, given: Given, chosen: Optional[Mapping[str, Any]] = None) -> Fit:
        """Fit, and search unless `chosen` gives the hyperparameters of an earlier search."""

    def score(self, loader: Iterable[Any]) -> Scores:
        """Score the batches of a loader that yields what `Given.train` yields."""
