"""The interface of an OOD detection method, and OpenOOD's hyperparameter search.

A method that needs only penultimate features gets the *head* as its network and features as its
samples, so all such methods share one pass over the network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Mapping, Optional, Protocol, Sequence

import numpy as np
from torch import nn

from nac_openood.core.metrics import auroc
from nac_openood.detector.batches import bar
from nac_openood.detector.outcomes import Scores
from nac_openood.errors import NACError

Point = dict[str, Any]


@dataclass(frozen=True)
class MethodInputs:
    """What a method may use before it scores test data.

    Args:
        net: the network, on its device; for a method that needs only features, its `Head`.
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
class MethodSetup:
    """How a method was set up.

    Args:
        hyperparameters: those in use, as JSON values by name; enough to set the method up again
            without a search.
        search: what the search reports, as JSON values, e.g. `{"auroc": 0.81, "points": 5}`; None
            if there was no search.
        advice: how the method compares with simpler ones on validation data, as JSON values; see
            `nac_openood.search.advise.Advice.to_dict`.
        advice_seconds: how long that took, which does not count as setting the method up.
    """

    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    search: Optional[Mapping[str, Any]] = None
    advice: Optional[Mapping[str, Any]] = None
    advice_seconds: float = 0.0


class Scorer(Protocol):
    """An OOD detection method: set up once, then used to score datasets."""

    #: The library whose code runs, with its version, e.g. "OpenOOD 1.5".
    implementation: str
    #: Everything else that its scores depend on, as JSON values: results are reused only if
    #: these are equal.
    settings: Mapping[str, Any]

    def setup(
        self, inputs: MethodInputs, chosen: Optional[Mapping[str, Any]] = None
    ) -> Optional[MethodSetup]:
        """Fit, and search unless `chosen` gives the hyperparameters of an earlier search.

        Returns:
            The hyperparameters in use; None if there are none.
        """

    def score(self, loader: Iterable[Any]) -> Scores:
        """Score the batches of a loader that yields what `MethodInputs.train` yields."""


def joined_scores(parts: Iterable[Scores]) -> Scores:
    """The scores of a dataset, from those of its batches."""
    score, prediction, label = (np.concatenate(column) for column in list(zip(*parts))[:3])
    return Scores(score, prediction, label)


def search_grid(
    points: Sequence[Point],
    validate: Callable[[Point], tuple[Any, Any]],
    *,
    sweep_size: int,
    title: str,
    progress: Optional[bool] = None,
) -> MethodSetup:
    """Search hyperparameters as OpenOOD does: the first point with the highest AUROC wins.

    Args:
        points: the points of a sweep that can be used, from `search.run.grid_points`.
        validate: returns the scores of ID and OOD validation data, `[samples]` each, for a point.
        sweep_size: number of points of the whole sweep.
        title: name of the method.
        progress: None shows a progress bar on a terminal.

    Raises:
        NACError: no point has an AUROC above 0.
    """
    best, highest = None, 0.0
    for point in bar(points, f"{title}: search", progress):
        scores = [np.asarray(part) for part in validate(point)]
        if not all(np.isfinite(part).all() for part in scores):
            continue  # e.g. OpenOOD's ViM with more dimensions than features
        value = float(auroc(*scores))
        if value > highest:
            best, highest = point, value
    if best is None:
        raise NACError(f"{title}: no hyperparameters rank any ID above any OOD validation sample.")
    report = {"objective": "auroc", "auroc": highest, "points": len(points)}
    if sweep_size > len(points):
        report["left_out"] = sweep_size - len(points)
    return MethodSetup(best, report)


def usable_values(
    method: str, values: Sequence[Any], *, n_train: int = 0, width: int = 0
) -> Sequence[Any]:
    """The values of a hyperparameter that KNN or ViM can use; all values for other methods.

    With more neighbors than training samples, OpenOOD's KNN gives all samples the same score.
    OpenOOD's subspace dimensions for ViM are meant for 512 features and more: if none of them is
    smaller than the number of features, half that number is used, as ViM's authors do for small
    networks.

    Args:
        method: name of the method.
        values: K of KNN or the dimension of ViM's subspace.
        n_train: number of training samples.
        width: number of features.

    Raises:
        NACError: KNN can use none of the values.
    """
    if method == "vim":
        return [dim for dim in values if dim < width] or [width // 2]
    if method == "knn":
        if min(values) > n_train:
            raise NACError(
                f"K={values[0]} exceeds the {n_train} training samples. Add some, or leave KNN out "
                "of `methods`."
            )
        return [k for k in values if k <= n_train]
    return values
