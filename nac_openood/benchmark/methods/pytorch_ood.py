"""Baselines by pytorch-ood's detectors, with the data and hyperparameters that OpenOOD uses.

For the functions `fit_NAME` see `PytorchOODScorer`.
"""

from __future__ import annotations

import copy
import importlib
import os
import warnings
from contextlib import contextmanager, suppress
from importlib import metadata
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nac_openood.benchmark.methods.scorer import BatchScorer, MethodInputs, Point
from nac_openood.benchmark.methods.table import Absent, Method
from nac_openood.detector.batches import batches
from nac_openood.errors import NACError, some
from nac_openood.network.architectures import table_layers
from nac_openood.network.inputs import device_of, logits_of, prepare
from nac_openood.network.replica import run

#: How many numbers a detector may compute at a time.
_CHUNK = 2**26
#: What OpenOOD assumes if it does not know how images were normalized.
_STD = (0.5, 0.5, 0.5)
#: A function that computes outlier scores, and one that returns it for some hyperparameters; see
#: `PytorchOODScorer`.
Outliers = Callable[..., Any]
FittedMethod = Callable[..., Outliers]


class _EndOfPass(BaseException):
    """Ends a pass whose rest is not needed."""


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


class PytorchOODScorer(BatchScorer):
    """A method whose function `fit_NAME` is in this file, with the defaults and sweep of its row.

    `fit_NAME(inputs)` returns a function that takes hyperparameters and returns the function that
    computes outlier scores `[batch]` (higher = more out-of-distribution):

    * a method on features takes features `[batch, D]` and logits `[batch, classes]`;
    * a method on the network takes a batch, and returns outlier scores and logits.

    Raises:
        Absent: pytorch-ood is not installed.
    """

    def __init__(self, method: Method) -> None:
        detectors()
        sweep = {name: list(values) for name, values in method.sweep.items()}
        settings = {"defaults": dict(method.defaults), "sweep": sweep}
        super().__init__(method, f"pytorch-ood {metadata.version('pytorch-ood')}", settings)

    @contextmanager
    def environment(self) -> Iterator[None]:
        """With a seed, and without known warnings."""
        with super().environment(), warnings.catch_warnings():
            # SciPy, on the way to OpenMax's Weibull fit, tries parameters that overflow
            warnings.filterwarnings("ignore", category=RuntimeWarning, module="scipy")
            yield

    def fit(self, inputs: MethodInputs) -> tuple[Point, Mapping[str, Sequence[Any]]]:
        """See `BatchScorer`."""
        self._fitted: FittedMethod = globals()[f"fit_{self.method.name}"](inputs)
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


# ---- training data


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


# ---- methods on logits


def _logits(detector: Any) -> Outliers:
    return lambda _, logits: detector.predict_logits(logits)


def fit_msp(inputs: MethodInputs) -> FittedMethod:
    """The largest softmax probability."""
    return lambda: _logits(detectors().MaxSoftmax(None))


def fit_mls(inputs: MethodInputs) -> FittedMethod:
    """The largest logit."""
    return lambda: _logits(detectors().MaxLogit(None))


def fit_ebo(inputs: MethodInputs) -> FittedMethod:
    """Energy."""
    return lambda temperature: _logits(detectors().EnergyBased(None, t=temperature))


def fit_gen(inputs: MethodInputs) -> FittedMethod:
    """Generalized entropy; as in OpenOOD, an `M` above the number of classes means all."""
    return lambda gamma, M: _logits(detectors().GEN(None, gamma=gamma, M=M))


def fit_temp_scaling(inputs: MethodInputs) -> FittedMethod:
    """Softmax at the temperature with the lowest loss on ID validation data."""
    detector = detectors().TemperatureScaling(None)
    with torch.no_grad():
        detector.t.fill_(1.5)  # where OpenOOD starts
    with torch.enable_grad():
        detector.fit_logits(*collect(inputs.net, inputs.id_val, inputs.net))
    return lambda: _logits(detector)


def fit_klm(inputs: MethodInputs) -> FittedMethod:
    """Divergence from the mean posterior of each predicted class, of ID validation data.

    In float64, as in OpenOOD: the divergence of confident predictions is tiny.
    """
    detector = detectors().KLMatching(None)
    detector.fit_logits(collect(inputs.net, inputs.id_val, inputs.net)[0].double())
    return lambda: lambda _, logits: detector.predict_logits(logits.double())


def fit_openmax(inputs: MethodInputs) -> FittedMethod:
    """Extreme value statistics of the distances to the class centers of training logits.

    Weibull models of correct predictions, with OpenOOD's tail, alpha and distance.
    """
    values, label = collect(inputs.net, inputs.train, inputs.net)
    right = values.argmax(dim=1) == label
    # float64: the detector adds 10,000 to distances, after which float32 has 3 decimals left
    values, label, n_classes = values[right].double(), label[right], inputs.n_classes
    check_classes("openmax", label, n_classes, "sample with a correct prediction")
    kind = detectors().OpenMax
    detector = kind(None, tailsize=20, alpha=min(3, n_classes), euclid_weight=1.0)
    detector.fit_logits(values, label)
    centers = torch.stack([values[label == c].mean(dim=0) for c in range(n_classes)])

    def outliers(features: Tensor, logits: Tensor) -> Tensor:
        # The detector measures distances only to classes that are predicted somewhere in a batch
        # and takes 0 for the others, so scores would depend on the batch. Each center is predicted
        # as its class, so with them all classes occur.
        both = torch.cat([logits.double(), centers.to(logits.device)])
        return detector.predict_logits(both)[: len(logits)]

    return lambda: outliers


# ---- methods on features


def _features(detector: Any) -> Outliers:
    return lambda features, _: detector.predict_features(features)


def _fitted_on_train(method: str, inputs: MethodInputs, detector: Any) -> FittedMethod:
    """A detector without hyperparameters that is fitted on training features and labels."""
    values, label = collect(inputs.net, inputs.train)
    check_classes(method, label, inputs.n_classes)
    detector.fit_features(values, label)
    return lambda: _features(detector)


def fit_mds(inputs: MethodInputs) -> FittedMethod:
    """Mahalanobis distance to the nearest class."""
    return _fitted_on_train("mds", inputs, detectors().Mahalanobis(None))


def fit_rmds(inputs: MethodInputs) -> FittedMethod:
    """Mahalanobis distance to the nearest class, relative to that to all training data."""
    return _fitted_on_train("rmds", inputs, detectors().RMD(None))


def fit_she(inputs: MethodInputs) -> FittedMethod:
    """Inner product with the mean of the class's correct training features."""
    # on the CPU: the detector moves all features to where its head is
    return _fitted_on_train("she", inputs, detectors().SHE(None, copy.deepcopy(inputs.net).cpu()))


def fit_knn(inputs: MethodInputs) -> FittedMethod:
    """Distance to the K-th nearest training feature; all features have unit length."""
    values, label = collect(inputs.net, inputs.train)
    F.normalize(values, dim=1, out=values)  # in place: the detector would make a copy of all
    detector = detectors().KNN(None, k=1, normalize=False)
    detector.fit_features(values, label.clamp(min=0))

    def use(K: int) -> Outliers:
        detector.k = K
        return lambda features, _: detector.predict_features(F.normalize(features, dim=1))

    return use


def _head_weights(net: Any) -> tuple[Tensor, Tensor]:
    """Weight `[classes, D]` and bias `[classes]` of the head, on the CPU.

    Detectors work where their weights are, and the features of a training set may not fit on a GPU.
    """
    weight, bias = net.get_fc()
    return torch.from_numpy(weight), torch.from_numpy(bias)


def fit_vim(inputs: MethodInputs) -> FittedMethod:
    """Energy minus the norm outside the principal subspace, which is fitted for every `dim`."""
    train, (w, b) = collect(inputs.net, inputs.train), _head_weights(inputs.net)
    return lambda dim: _features(detectors().ViM(None, d=dim, w=w, b=b).fit_features(*train))


def fit_dice(inputs: MethodInputs) -> FittedMethod:
    """Energy of a head without the weights that contribute least to training data."""
    weight, bias = _head_weights(inputs.net)
    # all that the detector uses of training data
    mean = collect(inputs.net, inputs.train)[0].mean(dim=0, keepdim=True)

    def use(p: float) -> Outliers:
        detector = detectors().DICE(None, weight, bias, p=p / 100)
        detector.fit_features(mean, torch.zeros(1, dtype=torch.int64))
        # in parts: the detector multiplies all features with all weights before it sums
        return lambda features, _: torch.cat(
            [detector.predict_features(part) for part in _in_parts(features, weight.numel())]
        )

    return use


def fit_react(inputs: MethodInputs) -> FittedMethod:
    """Energy of features clipped at a percentile of ID validation features."""
    values = collect(inputs.net, inputs.id_val)[0]

    def use(percentile: float) -> Outliers:
        detector = detectors().ReAct(None, inputs.net, percentile=percentile / 100)
        detector.fit_feature_maps(values, torch.zeros(len(values)))
        return lambda features, _: detector.predict_feature_maps(features)

    return use


def fit_ash(inputs: MethodInputs) -> FittedMethod:
    """Energy of the largest features, all set to one value (ASH-B, as in OpenOOD)."""
    head = nn.Sequential(nn.Flatten(), inputs.net)

    def use(percentile: float) -> Outliers:
        detector = detectors().ASH(None, head, variant="ash-b", percentile=percentile / 100)
        # maps of one pixel
        return lambda features, _: detector.predict_feature_maps(features[:, :, None, None])

    return use


def fit_gradnorm(inputs: MethodInputs) -> FittedMethod:
    """Norm of the gradient of the head's weights; as in OpenOOD that of the bias is left out."""
    detector = detectors().GradNorm(inputs.net, param_filter=lambda name: name == "fc.weight")
    return lambda: lambda features, _: detector.predict(features)


# ---- methods that read layers inside the network or change its input


def fit_odin(inputs: MethodInputs) -> FittedMethod:
    """Softmax at a temperature, of an image moved towards its predicted class."""
    passes: list[Tensor] = []

    def logits(x: Tensor) -> Tensor:
        found = logits_of(run(inputs.net, x), x)
        passes.append(found.detach())
        return found

    def use(temperature: float, noise: float) -> Outliers:
        std = list(inputs.std or _STD)
        detector = detectors().ODIN(logits, eps=noise, temperature=temperature, norm_std=std)

        def outliers(x: Tensor) -> tuple[Tensor, Tensor]:
            passes.clear()
            # the first of the detector's two passes has `x` itself
            return detector.predict(x), passes[0]

        return outliers

    return use


def fit_mds_ensemble(inputs: MethodInputs) -> FittedMethod:
    """Mahalanobis distance in an early layer, of an image moved towards its predicted class.

    OpenOOD's ensemble has one member, the spatial mean of the first stage's input. That is
    `MahalanobisODIN`; `MultiMahalanobis` could not move the image.
    """
    net = inputs.net
    (stage,) = _stages("mds_ensemble", net, "layer1")

    def encode(x: Tensor) -> Tensor:
        found: list[Tensor] = []

        def observe(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            found.append(inputs[0].clone())
            raise _EndOfPass

        with suppress(_EndOfPass):
            run(net, x, on_input=[(stage, observe)])
        return found[0].flatten(2).mean(dim=2).float()

    values, label = collect(net, inputs.train, encode)
    check_classes("mds_ensemble", label, inputs.n_classes)
    detector, device = detectors().MahalanobisODIN(encode, norm_std=list(_STD)), device_of(net)
    detector.fit_features(values.to(device), label.to(device))

    def outliers(x: Tensor) -> tuple[Tensor, Tensor]:
        outlier = detector.predict(x)
        with torch.no_grad():
            return outlier, logits_of(run(net, x), x)

    def use(noise: float) -> Outliers:
        detector.eps = noise
        return outliers

    return use


def fit_rankfeat(inputs: MethodInputs) -> FittedMethod:
    """Energy without the largest singular value of the maps of the last two stages."""
    net = inputs.net
    stages = _stages("rankfeat", net, "layer3", "layer4")

    def without_largest(stage: nn.Module, x: Tensor, maps: Tensor) -> Tensor:
        """Logits of a pass in which the changed maps replace the output of the stage."""

        def rest(changed: Tensor) -> Tensor:
            changed = changed.to(x.dtype)
            return logits_of(run(net, x, on_output=[(stage, lambda *_: changed)]), x).float()

        # OpenOOD averages the logits of both stages, so the detector has to return logits
        detector = detectors().RankFeat(None, rest, detector=lambda logits: logits)
        return detector.predict_feature_maps(maps.float().contiguous())

    def use(temperature: float) -> Outliers:
        energy = detectors().EnergyBased(None, t=temperature)

        @torch.no_grad()
        def outliers(x: Tensor) -> tuple[Tensor, Tensor]:
            logits, outputs = _outputs(net, stages, x, copies=True)
            first, second = (without_largest(s, x, maps) for s, maps in zip(stages, outputs))
            return energy.predict_logits((first + second) / 2), logits

        return outliers

    return use


def fit_gram(inputs: MethodInputs) -> FittedMethod:
    """How far the Gram matrices of an image's feature maps deviate from those of its class.

    The maps are the outputs of all convolutions and ReLUs, as in OpenOOD.
    """
    net = inputs.net
    modules = [m for m in net.modules() if isinstance(m, (nn.ReLU, nn.Conv2d))]
    if not modules:
        raise Absent(
            f"gram reads the outputs of nn.Conv2d and nn.ReLU modules, and {type(net).__name__} "
            "has none."
        )

    def read(x: Tensor) -> tuple[Tensor, list[Tensor]]:
        # not copied: after an in-place ReLU OpenOOD reads the changed maps, too
        logits, maps = _outputs(net, modules, x, copies=False)
        return logits.float(), [each.float() for each in maps]

    with torch.no_grad():
        first = read(next(labelled(net, inputs.train))[0][:1])[1]
    train = _TrainingParts(inputs, sum(each.numel() for each in first))

    def use(powers: Sequence[int]) -> Outliers:
        _check_memory(sum(each.shape[1] for each in first) * len(powers), len(train))
        seen: list[Any] = []

        # the detector expects a chain of layers: the first runs the network, the others replay
        def start(x: Tensor) -> Tensor:
            seen[:] = read(x)
            return seen[1][0]

        replay = [lambda _, i=i: seen[1][i] for i in range(1, len(first))]
        detector = detectors().Gram(
            lambda _: seen[0], [start, *replay], inputs.n_classes, num_poles_list=list(powers)
        )
        detector.to(device_of(net)).fit(train)
        detector.to(device_of(net))  # its statistics are on the CPU

        @torch.no_grad()
        def outliers(x: Tensor) -> tuple[Tensor, Tensor]:
            found = []
            for part in _in_parts(x, train.numbers):  # a whole batch's maps may not fit in memory
                logits, maps = read(part)
                found.append((detector.predict_structured(logits, maps), logits))
            scores, all_logits = zip(*found)
            return torch.cat(scores), torch.cat(all_logits)

        return outliers

    return use


class _TrainingParts:
    """Training images as the loader of `(x, y)` that Gram's detector expects, in small parts."""

    def __init__(self, inputs: MethodInputs, numbers: int) -> None:
        self.inputs, self.numbers = inputs, numbers

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, label in labelled(self.inputs.net, self.inputs.train):
            parts = _in_parts(x, self.numbers)
            yield from zip(parts, label.split(len(parts[0])))

    def __len__(self) -> int:
        """Number of images, 0 if unknown."""
        return len(getattr(self.inputs.train, "dataset", ()))


def _in_parts(x: Tensor, numbers_each: int) -> tuple[Tensor, ...]:
    """Split a batch so that no part computes too many numbers at a time."""
    return x.split(max(1, _CHUNK // max(1, numbers_each)))


def _check_memory(numbers: int, images: int) -> None:
    """Raise an error if Gram's statistics would not fit into the memory of this machine."""
    if hasattr(os, "sysconf"):
        needed = 4 * numbers * images
        installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > 0.8 * installed:
            raise NACError(
                f"gram needs {needed / 2**30:.0f} GB for {images} training images; this machine "
                f"has {installed / 2**30:.0f} GB. Use fewer of them, or leave it out of `methods`."
            )


def _stages(method: str, net: nn.Module, *names: str) -> list[nn.Module]:
    """Stages of a network by their names in the architecture table.

    Raises:
        Absent: the network has no such stages with maps `[batch, channels, height, width]`.
    """
    found = {layer.alias: layer.path for layer in table_layers(net) if layer.layout == "maps"}
    if not set(names) <= set(found):
        raise Absent(
            f"{method} reads feature maps of {' and '.join(names)} as a ResNet has them, and "
            f"{type(net).__name__} has no such stages. Leave it out of `methods`."
        )
    return [net.get_submodule(found[name]) for name in names]


def _outputs(
    net: nn.Module, modules: Sequence[nn.Module], x: Tensor, *, copies: bool
) -> tuple[Tensor, list[Tensor]]:
    """Logits, and the outputs of `modules`, a tensor per call in the order of the calls.

    Args:
        net: the network.
        modules: submodules of `net`.
        x: a batch.
        copies: whether to copy outputs, which later in-place operations could overwrite.
    """
    found: list[Tensor] = []

    def observe(module: nn.Module, inputs: Any, output: Tensor) -> None:
        found.append(output.clone() if copies else output)

    return logits_of(run(net, x, on_output=[(module, observe) for module in modules]), x), found
