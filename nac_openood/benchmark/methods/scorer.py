"""The interface of a method, OpenOOD's hyperparameter search, and methods given as functions.

A method that needs only penultimate features gets the *head* as its network and features as its
samples, so all such methods share one pass over the network.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Protocol, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from nac_openood.benchmark.methods.table import Absent, Method
from nac_openood.core.metrics import auroc
from nac_openood.detector.batches import Batch, bar, batches, load_batches
from nac_openood.detector.outcomes import Scores
from nac_openood.distributed import map_shared
from nac_openood.errors import NACError, some
from nac_openood.network.architectures import table_layers
from nac_openood.network.inputs import device_of, logits_of, prepare
from nac_openood.network.replica import kept_random_state, private_copy, run
from nac_openood.search.run import grid_points

Point = dict[str, Any]
#: How many numbers a method may compute at a time.
_CHUNK = 2**26
#: A function that computes scores, and one that returns it for some hyperparameters; see
#: `FunctionScorer`.
ScoreFunction = Callable[..., Any]
FittedMethod = Callable[..., ScoreFunction]


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

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return device_of(self.net)

    @property
    def head(self) -> tuple[Tensor, Tensor]:
        """Weight `[classes, D]` and bias `[classes]` of the head, on the CPU.

        Detectors work where their weights are, and the features of a training set may not fit on a
        GPU.
        """
        net: Any = self.net
        weight, bias = net.get_fc()
        return torch.from_numpy(weight), torch.from_numpy(bias)

    def logits(self, x: Tensor, **observers: Any) -> Tensor:
        """The logits of a batch; `observers` are those of `nac_openood.network.replica.run`."""
        return logits_of(run(self.net, x, **observers), x)

    def batches(self, loader: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches as the network takes them, and their labels on the CPU, -1 if there are none."""
        for batch in batches(loader):
            yield prepare(self.net, batch.data), batch.labels()

    @torch.no_grad()
    def collect(
        self, loader: Iterable[Any], function: Callable[[Tensor], Tensor] = lambda x: x
    ) -> tuple[Tensor, Tensor]:
        """The results of a function of every batch `[samples, ...]`, and the labels, on the CPU."""
        parts, labels = [], []
        for x, label in self.batches(loader):
            parts.append(function(x).detach().float().cpu())
            labels.append(label)
        # not torch.cat, which would need twice the memory: each part is freed when it is copied
        whole = torch.empty((sum(map(len, parts)), *parts[0].shape[1:]))
        for rows in whole.split([len(part) for part in parts]):
            rows.copy_(parts.pop(0))
        return whole, torch.cat(labels)

    def check_classes(self, method: str, label: Tensor, what: str = "sample") -> None:
        """Check that every class has a training label."""
        missing = sorted(set(range(self.n_classes)) - set(label.unique().tolist()))
        if missing:
            raise NACError(
                f"{method} needs at least one training {what} of every class; there is none of "
                f"{some(missing)}. Add training data, or leave it out of `methods`."
            )

    def check_movable(self) -> None:
        """Check that inputs can be moved along a gradient."""
        x: Any = next(self.batches(self.id_val))[0]
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise Absent(
                "this method moves inputs along a gradient, so each must be one tensor of "
                "floating-point numbers. Leave it out of `methods`."
            )


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


# ---- what several methods need


def usable_points(method: str, points: Sequence[Point], inputs: MethodInputs) -> Sequence[Point]:
    """The hyperparameters that can be used with this data.

    With more neighbors than training samples, OpenOOD's KNN gives all samples the same score.
    The subspace dimensions of ViM and Residual are meant for 512 features and more: if none of them
    is smaller than the number of features, half that number is used, as ViM's authors do for small
    networks.

    Raises:
        NACError: KNN can use none of them.
    """
    if method not in ("knn", "vim", "residual"):
        return points
    (name,) = points[0]
    values = [point[name] for point in points]
    if method != "knn":
        head: Any = inputs.net
        width = head.fc.in_features
        return [{name: dim} for dim in values if dim < width] or [{name: width // 2}]
    n_train = sum(batch.size for batch in batches(inputs.train))
    if min(values) > n_train:
        raise NACError(
            f"K={values[0]} exceeds the {n_train} training samples. Add some, or leave KNN out of "
            "`methods`."
        )
    return [{name: k} for k in values if k <= n_train]


def stages_of(net: nn.Module, *names: str) -> dict[str, nn.Module]:
    """The stages that a method on feature maps uses, by their names in the architecture table.

    Args:
        net: the network.
        names: of stages; by default all, and the pooling after them.

    Raises:
        Absent: the network has no such stage with maps `[batch, channels, height, width]`.
    """
    rows = [row for row in table_layers(net) if row.layout == "maps" or row.alias == "avgpool"]
    found = {row.alias: net.get_submodule(row.path) for row in rows}
    if not set(names) <= set(found):
        raise Absent(
            f"this method reads feature maps of {' and '.join(names)} as a ResNet has them, and "
            f"{type(net).__name__} has no such stages. Leave it out of `methods`."
        )
    return {name: found[name] for name in names or found}


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

    def environment(self) -> AbstractContextManager[Any]:
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
            if chosen is None:
                found = self._search(tried)
            else:
                found = MethodSetup({**defaults, **chosen})
            self.use(dict(found.hyperparameters))
        return found

    def score(self, loader: Iterable[Any]) -> Scores:
        """Score the batches of a loader."""
        with self.environment():
            return self._scores(loader)

    def _search(self, tried: Sequence[Point]) -> MethodSetup:
        """Search as OpenOOD does: the first point with the highest AUROC wins."""
        name, inputs = self.method.name, self.inputs
        points = usable_points(name, tried, inputs)
        if len(tried) == 1:
            return MethodSetup(points[0])
        best, highest = None, 0.0
        for point in bar(points, f"{name}: search", inputs.progress):
            self.use(point)
            loaders: list[Any] = [inputs.id_val, inputs.ood_val]
            scores = [self._scores(loader).score for loader in loaders]
            # e.g. OpenOOD's ViM with more dimensions than features has none that are finite
            value = float(auroc(*scores)) if np.isfinite(np.concatenate(scores)).all() else 0.0
            if value > highest:
                best, highest = point, value
        if best is None:
            what = "no hyperparameters rank any ID above any OOD validation sample"
            raise NACError(f"{name}: {what}.")
        report = {"objective": "auroc", "auroc": highest, "points": len(points)}
        left_out = {"left_out": len(tried) - len(points)} if len(points) < len(tried) else {}
        return MethodSetup(best, {**report, **left_out})

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


# ---- methods given as functions


class FunctionScorer(BatchScorer):
    """A method given as a function `fit_NAME`, with the defaults and sweep of its row.

    `fit_NAME(inputs, ...)` takes the hyperparameters that have no sweep. It returns a function that
    takes the others and returns the function that computes the scores `[batch]`:

    * a method on features takes features `[batch, D]` and logits `[batch, classes]`;
    * a method on the network takes a batch, and returns scores and logits.

    Args:
        method: its row of the table.
        implementation: the library whose code runs, with its version.
        function: `fit_NAME`.
        sign: -1 if higher scores mean more out-of-distribution.
    """

    def __init__(
        self,
        method: Method,
        implementation: str,
        function: Callable[..., FittedMethod],
        sign: int = 1,
    ) -> None:
        settings = {"defaults": method.defaults, "sweep": method.sweep}
        super().__init__(method, implementation, settings)
        self._function, self._sign = function, sign

    def fit(self, inputs: MethodInputs) -> tuple[Point, Mapping[str, Sequence[Any]]]:
        """See `BatchScorer`."""
        defaults, sweep = dict(self.method.defaults), self.method.sweep
        fixed = {name: value for name, value in defaults.items() if name not in sweep}
        self._fitted = self._function(inputs, **fixed)
        return defaults, sweep

    def use(self, point: Point) -> None:
        """See `BatchScorer`."""
        self._score = self._fitted(**{name: point[name] for name in self.method.sweep})

    def score_batch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `BatchScorer`."""
        if self.method.needs == "network":
            score, logits = self._score(x)
        else:
            with torch.no_grad():
                logits = self.inputs.net(x).float()
                score = self._score(x.float(), logits)
        return self._sign * score, logits.argmax(dim=1)


def in_parts(x: Tensor, numbers_each: int) -> tuple[Tensor, ...]:
    """Split a batch so that no part computes too many numbers at a time."""
    return x.split(max(1, _CHUNK // max(1, numbers_each)))
