"""The interface of a method, OpenOOD's hyperparameter search, and methods by batches.

A method that needs only penultimate features gets the *head* as its network and features as its
samples, so all such methods share one pass over the network.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import (
    Any,
    Callable,
    ContextManager,
    Iterable,
    Iterator,
    Mapping,
    Optional,
    Protocol,
    Sequence,
)

import numpy as np
import torch
from torch import Tensor, nn

from nac_openood.benchmark.methods.table import Method
from nac_openood.core.metrics import auroc
from nac_openood.detector.batches import Batch, bar, batches, load_batches
from nac_openood.detector.outcomes import Scores
from nac_openood.distributed import map_shared
from nac_openood.errors import NACError, some
from nac_openood.network.inputs import prepare
from nac_openood.network.replica import kept_random_state, private_copy
from nac_openood.search.run import grid_points

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


# ---- hyperparameters


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


# ---- methods that score batch by batch


class BatchScorer:
    """A method that scores batches one by one, after a search as in OpenOOD; see `Scorer`.

    Subclasses implement `fit`, `score_batch` and, with hyperparameters, `use`. Several processes
    share the batches.

    Args:
        method: its row of the table.
        implementation: the library whose code runs, with its version.
        settings: everything else that the scores depend on, as JSON values.
    """

    def __init__(self, method: Method, implementation: str, settings: Mapping[str, Any]) -> None:
        self.method, self.implementation, self.settings = method, implementation, settings

    def fit(self, inputs: MethodInputs) -> tuple[Point, Mapping[str, Sequence[Any]]]:
        """Fit the method, and return the default hyperparameters and those that a search tries."""
        raise NotImplementedError

    def use(self, point: Point) -> None:
        """Score with these hyperparameters from now on."""

    def score_batch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and predictions `[batch]`, of a batch on the device of the network."""
        raise NotImplementedError

    def environment(self) -> ContextManager[Any]:
        """What every call of the other methods is run in."""
        return kept_random_state(self.inputs.seed)

    def setup(
        self, inputs: MethodInputs, chosen: Optional[Mapping[str, Any]] = None
    ) -> MethodSetup:
        """Fit, and search if there is something to try and OOD validation data."""
        self.inputs = replace(inputs, net=private_copy(inputs.net))
        with self.environment():
            defaults, sweep = self.fit(self.inputs)
            tried = grid_points(sweep) if sweep and inputs.ood_val is not None else [defaults]
            if chosen is not None:
                found = MethodSetup({**defaults, **chosen})
            elif len(tried) == 1:
                found = MethodSetup(self._usable(tried)[0])
            else:
                found = search_grid(
                    self._usable(tried), self._validate, sweep_size=len(tried),
                    title=self.method.name, progress=inputs.progress,
                )  # fmt: skip
            self.use(dict(found.hyperparameters))
        return found

    def score(self, loader: Iterable[Any]) -> Scores:
        """Score the batches of a loader."""
        with self.environment():
            return self._scores(loader)

    def _validate(self, point: Point) -> tuple[np.ndarray, np.ndarray]:
        self.use(point)
        loaders: list[Any] = [self.inputs.id_val, self.inputs.ood_val]
        inside, outside = (self._scores(loader).score for loader in loaders)
        return inside, outside

    def _scores(self, loader: Iterable[Any]) -> Scores:
        def work(batch: Batch) -> tuple[np.ndarray, ...]:
            score, prediction = self.score_batch(prepare(self.inputs.net, batch.data))
            on_cpu = score.detach().cpu().double(), prediction.cpu(), batch.labels()
            return tuple(part.reshape(-1).numpy() for part in on_cpu)

        title = self.method.name
        numbered = load_batches(loader, title, self.inputs.progress)
        parts = map_shared(title, (batch for batch in numbered if batch.in_shard), work)
        score, prediction, label = (np.concatenate(column) for column in zip(*parts))
        return Scores(score, prediction, label)

    def _usable(self, points: Sequence[Point]) -> Sequence[Point]:
        """The points that can be used with this data."""
        if self.method.name not in ("knn", "vim"):
            return points
        (name,) = points[0]
        net: Any = self.inputs.net
        n_train = sum(batch.size for batch in batches(self.inputs.train))
        values = [point[name] for point in points]
        usable = usable_values(self.method.name, values, n_train=n_train, width=net.fc.in_features)
        return [{name: value} for value in usable]


#: Computes outlier scores `[batch]`, and what makes it of hyperparameters; see `FunctionScorer`.
Outliers = Callable[..., Any]
FittedMethod = Callable[..., Outliers]


class FunctionScorer(BatchScorer):
    """A method as a function that fits it, with defaults and sweep from its row of the table.

    `fit_method(inputs)` returns a function of the hyperparameters, which returns the function that
    computes outlier scores `[batch]` (higher = more out-of-distribution):

    * for a method on features, of features `[batch, D]` and logits `[batch, classes]`;
    * for a method on the network, of a batch; it returns outlier scores and logits.

    Args:
        method: its row of the table.
        fit_method: the function.
        implementation: the library whose code runs, with its version.
    """

    def __init__(
        self,
        method: Method,
        fit_method: Callable[[MethodInputs], FittedMethod],
        implementation: str,
    ) -> None:
        sweep = {name: list(values) for name, values in method.sweep.items()}
        settings = {"defaults": dict(method.defaults), "sweep": sweep}
        super().__init__(method, implementation, settings)
        self._fit_method = fit_method

    @contextmanager
    def environment(self) -> Iterator[None]:
        """With a seed, and without known warnings."""
        with super().environment(), warnings.catch_warnings():
            # SciPy, on the way to OpenMax's Weibull fit, tries parameters that overflow
            warnings.filterwarnings("ignore", category=RuntimeWarning, module="scipy")
            yield

    def fit(self, inputs: MethodInputs) -> tuple[Point, Mapping[str, Sequence[Any]]]:
        """See `BatchScorer`."""
        self._fitted = self._fit_method(inputs)
        return dict(self.method.defaults), self.method.sweep

    def use(self, point: Point) -> None:
        """See `BatchScorer`."""
        self._outliers = self._fitted(**point)

    def score_batch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `BatchScorer`."""
        if self.method.needs == "network":
            outlier, logits = self._outliers(x)
        else:
            with torch.no_grad():
                logits = self.inputs.net(x).float()
                outlier = self._outliers(x.float(), logits)
        return -outlier, logits.argmax(dim=1)


def labelled(net: nn.Module, loader: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches as `net` takes them, and their labels on the CPU, -1 if there are none."""
    for batch in batches(loader):
        yield prepare(net, batch.data), batch.labels()


@torch.no_grad()
def collect(
    net: nn.Module, loader: Iterable[Any], function: Callable[[Tensor], Tensor] = lambda x: x
) -> tuple[Tensor, Tensor]:
    """The results of a function of every batch `[samples, ...]`, and the labels, on the CPU."""
    parts, labels = [], []
    for x, label in labelled(net, loader):
        parts.append(function(x).detach().float().cpu())
        labels.append(label)
    # not torch.cat, which would need twice the memory: each part is freed when it is copied
    whole = torch.empty((sum(map(len, parts)), *parts[0].shape[1:]))
    for rows in whole.split([len(part) for part in parts]):
        rows.copy_(parts.pop(0))
    return whole, torch.cat(labels)


def check_classes(method: str, label: Tensor, n_classes: int, what: str = "sample") -> None:
    """Check that every class has a training label."""
    missing = sorted(set(range(n_classes)) - set(label.unique().tolist()))
    if missing:
        raise NACError(
            f"{method} needs at least one training {what} of every class; there is none of "
            f"{some(missing)}. Add training data, or leave it out of `methods`."
        )
