"""Baselines by pytorch-ood's detectors, with the data and hyperparameters that OpenOOD uses.

Each function `fit_NAME` fits a method on `MethodInputs`. The methods here use penultimate features
and logits; those that read layers inside the network or change its input are in
`pytorch_ood_network.py`.
"""

from __future__ import annotations

import copy
import importlib
import warnings
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pkgutil import resolve_name
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nac_openood.benchmark.methods.scorer import (
    MethodInputs,
    MethodSetup,
    Point,
    joined_scores,
    search_grid,
    usable_values,
)
from nac_openood.benchmark.methods.table import Absent, Method
from nac_openood.detector.batches import bar, batches
from nac_openood.detector.outcomes import Scores
from nac_openood.errors import NACError, some
from nac_openood.network.inputs import prepare
from nac_openood.network.replica import kept_random_state, private_copy
from nac_openood.search.run import grid_points

#: How many numbers a detector may compute at a time.
_CHUNK = 2**26

#: A fitted method on features: from hyperparameters to a function of features `[batch, D]` and
#: logits `[batch, classes]` that returns outlier scores `[batch]`.
OnFeatures = Callable[[Point], Callable[[Tensor, Tensor], Tensor]]
#: A fitted method on the network: from hyperparameters to a function of a batch that returns
#: outlier scores and logits.
OnNetwork = Callable[[Point], Callable[[Tensor], tuple[Tensor, Tensor]]]


def detectors() -> Any:
    """The module `pytorch_ood.detector`.

    Raises:
        Absent: pytorch-ood is not installed.
    """
    try:
        return importlib.import_module("pytorch_ood.detector")
    except ImportError as error:
        raise Absent(
            f"the baselines need pytorch-ood, which cannot be imported ({error}). Install it: "
            "pip install 'nac-openood[baselines]'."
        ) from error


class PytorchOODScorer:
    """A baseline from pytorch-ood; see `Scorer`.

    Args:
        method: a row of the table with an adapter.

    Raises:
        Absent: pytorch-ood is not installed.
    """

    def __init__(self, method: Method) -> None:
        detectors()
        try:
            self.implementation = f"pytorch-ood {metadata.version('pytorch-ood')}"
        except metadata.PackageNotFoundError:
            self.implementation = "pytorch-ood of unknown version"
        self.method, self._defaults, self._sweep = method.name, method.defaults, method.sweep
        self._on_features = method.needs == "features"
        module = __name__ if self._on_features else f"{__name__}_network"
        self._fit = resolve_name(f"{module}:fit_{method.name}")
        self.settings: Mapping[str, Any] = {
            "defaults": dict(method.defaults),
            "sweep": {name: list(values) for name, values in method.sweep.items()},
        }

    def setup(
        self, inputs: MethodInputs, chosen: Optional[Mapping[str, Any]] = None
    ) -> MethodSetup:
        """Fit, and search where OpenOOD searches and there is OOD validation data."""
        self._inputs = inputs = replace(inputs, net=private_copy(inputs.net))
        with self._environment():
            use = self._fit(inputs)
            if chosen is not None:
                found = MethodSetup({**self._defaults, **chosen})
            elif inputs.ood_val is None or len(grid_points(self._sweep)) < 2:
                found = MethodSetup(self._usable([dict(self._defaults)])[0])
            else:
                found = self._search(use)
            self._outliers = use(dict(found.hyperparameters))
        return found

    def _usable(self, points: Sequence[Point]) -> Sequence[Point]:
        """The points that can be used with this data."""
        if self.method not in ("knn", "vim"):
            return points
        (name,) = self._defaults
        net: Any = self._inputs.net
        n_train = sum(batch.size for batch in batches(self._inputs.train))
        values = usable_values(
            self.method, [point[name] for point in points], n_train=n_train,
            width=net.fc.in_features,
        )  # fmt: skip
        return [{name: value} for value in values]

    def _search(self, use: Any) -> MethodSetup:
        every = grid_points(self._sweep)
        loaders: list[Any] = [self._inputs.id_val, self._inputs.ood_val]
        if self._on_features:
            loaders = [list(loader) for loader in loaders]  # features fit into memory

        def validate(point: Point) -> tuple[Tensor, Tensor]:
            self._outliers = use(point)
            inside, outside = (
                -torch.cat([self._score(x)[0].cpu() for x, _ in labelled(self._inputs.net, loader)])
                for loader in loaders
            )
            return inside, outside

        return search_grid(
            self._usable(every), validate, sweep_size=len(every), title=self.method,
            progress=self._inputs.progress,
        )  # fmt: skip

    def _score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outlier scores `[batch]` and logits `[batch, classes]` of a prepared batch."""
        if not self._on_features:
            return self._outliers(x)
        with torch.no_grad():
            logits = self._inputs.net(x).float()
            return self._outliers(x.float(), logits), logits

    def score(self, loader: Iterable[Any]) -> Scores:
        """Score the batches of a loader; see `Scorer`."""
        parts, net = [], self._inputs.net
        with self._environment():
            for x, label in labelled(net, bar(loader, self.method, self._inputs.progress)):
                outlier, logits = self._score(x)
                score = -outlier.detach().cpu().double().numpy()
                prediction = logits.argmax(dim=1).cpu().numpy()
                parts.append(Scores(score, prediction, label.numpy()))
        return joined_scores(parts)

    @contextmanager
    def _environment(self) -> Iterator[None]:
        """Seed, and ignore known warnings."""
        with kept_random_state(self._inputs.seed), warnings.catch_warnings():
            # SciPy, on the way to OpenMax's Weibull fit, tries parameters that overflow
            warnings.filterwarnings("ignore", category=RuntimeWarning, module="scipy")
            yield


def labelled(net: nn.Module, loader: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches as `net` takes them, and their labels on the CPU, -1 if there are none."""
    for batch in batches(loader):
        yield prepare(net, batch.data), batch.labels()


@torch.no_grad()
def collect(
    net: nn.Module, loader: Iterable[Any], function: Callable[[Tensor], Tensor] = lambda x: x
) -> tuple[Tensor, Tensor]:
    """Apply a function to every batch and join the results on the CPU, without a second copy.

    Returns:
        The values `[samples, ...]` and the labels `[samples]`.
    """
    parts, labels = [], []
    for x, label in labelled(net, loader):
        parts.append(function(x).detach().float().cpu())
        labels.append(label)
    whole = torch.empty((sum(map(len, parts)), *parts[0].shape[1:]), dtype=parts[0].dtype)
    start = 0
    for i, part in enumerate(parts):
        whole[start : start + len(part)] = part
        start += len(part)
        parts[i] = part[:0].clone()  # the memory of `whole` is only taken up as it is filled
    return whole, torch.cat(labels)


def in_parts(x: Tensor, numbers_each: int) -> tuple[Tensor, ...]:
    """Split a batch so that no part computes too many numbers at a time."""
    return x.split(max(1, _CHUNK // max(1, numbers_each)))


def check_classes(method: str, label: Tensor, n_classes: int, what: str = "sample") -> None:
    """Check that every class has a training label."""
    missing = sorted(set(range(n_classes)) - set(label.unique().tolist()))
    if missing:
        raise NACError(
            f"{method} needs at least one training {what} of every class; there is none of "
            f"{some(missing)}. Add training data, or leave it out of `methods`."
        )


# ---- methods on logits


def _logits(detector: Any) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda _, logits: detector.predict_logits(logits)


def _features(detector: Any) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda features, _: detector.predict_features(features)


def fit_msp(inputs: MethodInputs) -> OnFeatures:
    """The largest softmax probability."""
    return lambda point: _logits(detectors().MaxSoftmax(None))


def fit_mls(inputs: MethodInputs) -> OnFeatures:
    """The largest logit."""
    return lambda point: _logits(detectors().MaxLogit(None))


def fit_ebo(inputs: MethodInputs) -> OnFeatures:
    """Energy."""
    return lambda point: _logits(detectors().EnergyBased(None, t=point["temperature"]))


def fit_gen(inputs: MethodInputs) -> OnFeatures:
    """Generalized entropy; as in OpenOOD, an `M` above the number of classes means all."""
    return lambda point: _logits(detectors().GEN(None, **point))


def fit_temp_scaling(inputs: MethodInputs) -> OnFeatures:
    """Softmax at the temperature with the lowest loss on ID validation data."""
    logits, label = collect(inputs.net, inputs.id_val, inputs.net)
    detector = detectors().TemperatureScaling(None)
    with torch.no_grad():
        detector.t.fill_(1.5)  # where OpenOOD starts
    with torch.enable_grad():
        detector.fit_logits(logits, label)
    return lambda point: _logits(detector)


def fit_klm(inputs: MethodInputs) -> OnFeatures:
    """Divergence from the mean posterior of each predicted class, of ID validation data.

    In float64, as in OpenOOD: the divergence of confident predictions is tiny.
    """
    detector = detectors().KLMatching(None)
    detector.fit_logits(collect(inputs.net, inputs.id_val, inputs.net)[0].double())
    return lambda point: lambda _, logits: detector.predict_logits(logits.double())


def fit_openmax(inputs: MethodInputs) -> OnFeatures:
    """Extreme value statistics of the distances to the class centers of training logits.

    Weibull models of correct predictions, with OpenOOD's tail, alpha and distance.
    """
    values, label = collect(inputs.net, inputs.train, inputs.net)
    right = values.argmax(dim=1) == label
    # float64: the detector adds 10,000 to distances, after which float32 has 3 decimals left
    values, label = values[right].double(), label[right]
    n_classes = inputs.n_classes
    check_classes("openmax", label, n_classes, "sample with a correct prediction")
    kind = detectors().OpenMax
    detector = kind(None, tailsize=20, alpha=min(3, n_classes), euclid_weight=1.0)
    detector.fit_logits(values, label)
    centers = torch.stack([values[label == c].mean(dim=0) for c in range(n_classes)])

    def score(features: Tensor, logits: Tensor) -> Tensor:
        # The detector measures distances only to classes that are predicted somewhere in a batch
        # and takes 0 for the others, so scores would depend on the batch. Each center is predicted
        # as its class, so with them all classes occur.
        both = torch.cat([logits.double(), centers.to(logits.device)])
        return detector.predict_logits(both)[: len(logits)]

    return lambda point: score


# ---- methods on features


def _fitted_on_train(method: str, inputs: MethodInputs, detector: Any) -> OnFeatures:
    """A detector without hyperparameters that is fitted on training features and labels."""
    values, label = collect(inputs.net, inputs.train)
    check_classes(method, label, inputs.n_classes)
    detector.fit_features(values, label)
    return lambda point: _features(detector)


def fit_mds(inputs: MethodInputs) -> OnFeatures:
    """Mahalanobis distance to the nearest class."""
    return _fitted_on_train("mds", inputs, detectors().Mahalanobis(None))


def fit_rmds(inputs: MethodInputs) -> OnFeatures:
    """Mahalanobis distance to the nearest class, relative to that to all training data."""
    return _fitted_on_train("rmds", inputs, detectors().RMD(None))


def fit_she(inputs: MethodInputs) -> OnFeatures:
    """Inner product with the mean of the class's correct training features."""
    # on the CPU: the detector moves all features to where its head is
    return _fitted_on_train("she", inputs, detectors().SHE(None, copy.deepcopy(inputs.net).cpu()))


def fit_knn(inputs: MethodInputs) -> OnFeatures:
    """Distance to the K-th nearest training feature; all features have unit length."""
    values, label = collect(inputs.net, inputs.train)
    F.normalize(values, dim=1, out=values)  # in place: the detector would make a copy of all
    detector = detectors().KNN(None, k=1, normalize=False)
    detector.fit_features(values, label.clamp(min=0))

    def use(point: Point) -> Callable[[Tensor, Tensor], Tensor]:
        detector.k = int(point["K"])
        return lambda features, _: detector.predict_features(F.normalize(features, dim=1))

    return use


def fit_vim(inputs: MethodInputs) -> OnFeatures:
    """Energy minus the norm outside the principal subspace, which is fitted for every `dim`."""
    train = collect(inputs.net, inputs.train)
    weight, bias = _head_weights(inputs.net)

    def use(point: Point) -> Callable[[Tensor, Tensor], Tensor]:
        detector = detectors().ViM(None, d=int(point["dim"]), w=weight, b=bias)
        return _features(detector.fit_features(*train))

    return use


def fit_dice(inputs: MethodInputs) -> OnFeatures:
    """Energy of a head without the weights that contribute least to training data."""
    weight, bias = _head_weights(inputs.net)
    total, count = torch.zeros(()), 0
    for x, _ in labelled(inputs.net, inputs.train):
        total, count = total.to(x.device) + x.double().sum(dim=0), count + len(x)
    mean = (total / count).float()[None].cpu()  # all that the detector uses of training data

    def use(point: Point) -> Callable[[Tensor, Tensor], Tensor]:
        detector = detectors().DICE(None, weight, bias, p=point["p"] / 100)
        detector.fit_features(mean, torch.zeros(1, dtype=torch.int64))
        # in parts: the detector multiplies all features with all weights before it sums
        return lambda features, _: torch.cat(
            [detector.predict_features(part) for part in in_parts(features, weight.numel())]
        )

    return use


def fit_react(inputs: MethodInputs) -> OnFeatures:
    """Energy of features clipped at a percentile of ID validation features."""
    values = collect(inputs.net, inputs.id_val)[0]

    def use(point: Point) -> Callable[[Tensor, Tensor], Tensor]:
        detector = detectors().ReAct(None, inputs.net, percentile=point["percentile"] / 100)
        detector.fit_feature_maps(values, torch.zeros(len(values)))
        return lambda features, _: detector.predict_feature_maps(features)

    return use


def fit_ash(inputs: MethodInputs) -> OnFeatures:
    """Energy of the largest features, all set to one value (ASH-B, as in OpenOOD)."""

    def use(point: Point) -> Callable[[Tensor, Tensor], Tensor]:
        percentile = point["percentile"] / 100
        detector = detectors().ASH(
            None, lambda maps: inputs.net(maps.flatten(1)), variant="ash-b", percentile=percentile
        )
        # maps of one pixel
        return lambda features, _: detector.predict_feature_maps(features[:, :, None, None])

    return use


def fit_gradnorm(inputs: MethodInputs) -> OnFeatures:
    """Norm of the gradient of the head's weights; as in OpenOOD that of the bias is left out."""
    detector = detectors().GradNorm(inputs.net, param_filter=lambda name: name == "fc.weight")
    return lambda point: lambda features, _: detector.predict(features)


def _head_weights(net: Any) -> tuple[Tensor, Tensor]:
    """Weight `[classes, D]` and bias `[classes]` of the head, on the CPU.

    Detectors work where their weights are, and the features of a training set may not fit on a GPU.
    """
    weight, bias = net.get_fc()
    return torch.from_numpy(weight), torch.from_numpy(bias)
