"""Baselines by pytorch-ood's detectors, with the data and hyperparameters that OpenOOD uses.

For the functions `fit_NAME` see `FunctionScorer`; here higher means more out-of-distribution.
"""

from __future__ import annotations

import copy
import importlib
import os
import warnings
from contextlib import suppress
from typing import Any, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nac_openood.benchmark.methods.scorer import (
    FittedMethod,
    MethodInputs,
    ScoreFunction,
    in_parts,
    stages_of,
)
from nac_openood.benchmark.methods.table import Absent
from nac_openood.errors import NACError

#: What OpenOOD assumes for all channels if it does not know how images were normalized.
_STD = (0.5,)


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
            f"needs pytorch-ood: pip install 'nac-openood[baselines]' ({error})"
        ) from error


# ---- methods on logits


def _logits(detector: Any) -> ScoreFunction:
    return lambda _, logits: detector.predict_logits(logits)


def fit_msp(inputs: MethodInputs) -> FittedMethod:
    """The largest softmax probability."""
    return lambda: _logits(detectors().MaxSoftmax(None))


def fit_mls(inputs: MethodInputs) -> FittedMethod:
    """The largest logit."""
    return lambda: _logits(detectors().MaxLogit(None))


def fit_ebo(inputs: MethodInputs, temperature: float) -> FittedMethod:
    """Energy."""
    return lambda: _logits(detectors().EnergyBased(None, t=temperature))


def fit_gen(inputs: MethodInputs) -> FittedMethod:
    """Generalized entropy; as in OpenOOD, an `M` above the number of classes means all."""
    return lambda gamma, M: _logits(detectors().GEN(None, gamma=gamma, M=M))


def fit_temp_scaling(inputs: MethodInputs) -> FittedMethod:
    """Softmax at the temperature with the lowest loss on ID validation data."""
    detector = detectors().TemperatureScaling(None)
    detector.t.data.fill_(1.5)  # where OpenOOD starts
    with torch.enable_grad():
        detector.fit_logits(*inputs.collect(inputs.id_val, inputs.net))
    return lambda: _logits(detector)


def fit_klm(inputs: MethodInputs) -> FittedMethod:
    """Divergence from the mean posterior of each predicted class, of ID validation data.

    In float64, as in OpenOOD: the divergence of confident predictions is tiny.
    """
    detector = detectors().KLMatching(None)
    detector.fit_logits(inputs.collect(inputs.id_val, inputs.net)[0].double())
    return lambda: lambda _, logits: detector.predict_logits(logits.double())


def fit_openmax(inputs: MethodInputs) -> FittedMethod:
    """Extreme value statistics of the distances to the class centers of training logits.

    Weibull models of correct predictions, with OpenOOD's tail, alpha and distance.
    """
    values, label = inputs.collect(inputs.train, inputs.net)
    right = values.argmax(dim=1) == label
    # float64: the detector adds 10,000 to distances, after which float32 has 3 decimals left
    values, label, n_classes = values[right].double(), label[right], inputs.n_classes
    inputs.check_classes("openmax", label, "sample with a correct prediction")
    kind = detectors().OpenMax
    detector = kind(None, tailsize=20, alpha=min(3, n_classes), euclid_weight=1.0)
    with warnings.catch_warnings():
        # SciPy, on the way to the Weibull fit, tries parameters that overflow
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="scipy")
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


def _features(detector: Any) -> ScoreFunction:
    return lambda features, _: detector.predict_features(features)


def _fitted_on_train(method: str, inputs: MethodInputs, detector: Any) -> FittedMethod:
    """A detector without hyperparameters that is fitted on training features and labels."""
    values, label = inputs.collect(inputs.train)
    inputs.check_classes(method, label)
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
    values, label = inputs.collect(inputs.train)
    F.normalize(values, dim=1, out=values)  # in place: the detector would make a copy of all
    detector = detectors().KNN(None, k=1, normalize=False)
    detector.fit_features(values, label.clamp(min=0))

    def use(K: int) -> ScoreFunction:
        detector.k = K
        return lambda features, _: detector.predict_features(F.normalize(features, dim=1))

    return use


def fit_vim(inputs: MethodInputs) -> FittedMethod:
    """Energy minus the norm outside the principal subspace, which is fitted for every `dim`."""
    train, (w, b) = inputs.collect(inputs.train), inputs.head
    return lambda dim: _features(detectors().ViM(None, d=dim, w=w, b=b).fit_features(*train))


def fit_dice(inputs: MethodInputs, p: float) -> FittedMethod:
    """Energy of a head without the weights that contribute least to training data."""
    weight, bias = inputs.head
    # all that the detector uses of training data
    mean = inputs.collect(inputs.train)[0].mean(dim=0, keepdim=True)
    detector = detectors().DICE(None, weight, bias, p=p / 100)
    detector.fit_features(mean, torch.zeros(1, dtype=torch.int64))
    # in parts: the detector multiplies all features with all weights before it sums
    return lambda: (
        lambda features, _: torch.cat(
            [detector.predict_features(part) for part in in_parts(features, weight.numel())]
        )
    )


def fit_react(inputs: MethodInputs) -> FittedMethod:
    """Energy of features clipped at a percentile of ID validation features."""
    values = inputs.collect(inputs.id_val)[0]

    def use(percentile: float) -> ScoreFunction:
        detector = detectors().ReAct(None, inputs.net, percentile=percentile / 100)
        detector.fit_feature_maps(values, torch.zeros(len(values)))
        return lambda features, _: detector.predict_feature_maps(features)

    return use


def fit_ash(inputs: MethodInputs) -> FittedMethod:
    """Energy of the largest features, all set to one value (ASH-B, as in OpenOOD)."""
    head = nn.Sequential(nn.Flatten(), inputs.net)

    def use(percentile: float) -> ScoreFunction:
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
    inputs.check_movable()
    passes: list[Tensor] = []

    def logits(x: Tensor) -> Tensor:
        found = inputs.logits(x)
        passes.append(found.detach())
        return found

    def use(temperature: float, noise: float) -> ScoreFunction:
        std = list(inputs.std or _STD)
        detector = detectors().ODIN(logits, eps=noise, temperature=temperature, norm_std=std)

        def outliers(x: Tensor) -> tuple[Tensor, Tensor]:
            passes.clear()
            # the first of the detector's two passes has `x` itself
            return detector.predict(x), passes[0]

        return outliers

    return use


def fit_mds_ensemble(inputs: MethodInputs, noise: float) -> FittedMethod:
    """Mahalanobis distance in an early layer, of an image moved towards its predicted class.

    OpenOOD's ensemble has one member, the spatial mean of the first stage's input. That is
    `MahalanobisODIN`; `MultiMahalanobis` could not move the image.
    """
    net = inputs.net
    (stage,) = stages_of(net, "layer1").values()

    def encode(x: Tensor) -> Tensor:
        found: list[Tensor] = []

        def observe(module: nn.Module, entering: tuple[Tensor, ...]) -> None:
            found.append(entering[0].clone())
            raise _EndOfPass

        with suppress(_EndOfPass):
            inputs.logits(x, on_input=[(stage, observe)])
        return found[0].flatten(2).mean(dim=2).float()

    values, label = inputs.collect(inputs.train, encode)
    inputs.check_classes("mds_ensemble", label)
    detector = detectors().MahalanobisODIN(encode, norm_std=list(_STD), eps=noise)
    device = inputs.device
    detector.fit_features(values.to(device), label.to(device))

    def outliers(x: Tensor) -> tuple[Tensor, Tensor]:
        outlier = detector.predict(x)
        with torch.no_grad():
            return outlier, inputs.logits(x)

    return lambda: outliers


def fit_rankfeat(inputs: MethodInputs, temperature: float) -> FittedMethod:
    """Energy without the largest singular value of the maps of the last two stages."""
    net, rank = inputs.net, detectors().RankFeat(None, lambda maps: maps, lambda maps: maps)

    def without_largest(stage: nn.Module, inputs: Any, maps: Tensor) -> Tensor:
        changed: Tensor = rank.predict_feature_maps(maps.float().contiguous())
        return changed.to(maps.dtype)

    stages = stages_of(net, "layer3", "layer4").values()
    changes: list[list[Any]] = [[], *([(stage, without_largest)] for stage in stages)]
    energy = detectors().EnergyBased(None, t=temperature)

    @torch.no_grad()
    def outliers(x: Tensor) -> tuple[Tensor, Tensor]:
        found = [inputs.logits(x, on_output=change).float() for change in changes]
        logits, first, second = found
        return energy.predict_logits((first + second) / 2), logits  # as in OpenOOD

    return lambda: outliers


def fit_gram(inputs: MethodInputs, powers: Sequence[int]) -> FittedMethod:
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
        maps: list[Tensor] = []
        on_output = [(module, lambda *call: maps.append(call[2])) for module in modules]
        logits = inputs.logits(x, on_output=on_output).float()
        return logits, [each.float() for each in maps]

    with torch.no_grad():
        first = read(next(inputs.batches(inputs.train))[0][:1])[1]
    train = _TrainingParts(inputs, sum(each.numel() for each in first))

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
    detector.to(inputs.device).fit(train)
    detector.to(inputs.device)  # its statistics are on the CPU

    @torch.no_grad()
    def outliers(x: Tensor) -> tuple[Tensor, Tensor]:
        found = []
        for part in in_parts(x, train.numbers):  # a whole batch's maps may not fit in memory
            logits, maps = read(part)
            found.append((detector.predict_structured(logits, maps), logits))
        scores, all_logits = zip(*found)
        return torch.cat(scores), torch.cat(all_logits)

    return lambda: outliers


class _TrainingParts:
    """Training images as the loader of `(x, y)` that Gram's detector expects, in small parts."""

    def __init__(self, inputs: MethodInputs, numbers: int) -> None:
        self.inputs, self.numbers = inputs, numbers

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, label in self.inputs.batches(self.inputs.train):
            parts = in_parts(x, self.numbers)
            yield from zip(parts, label.split(len(parts[0])))

    def __len__(self) -> int:
        """Number of images, 0 if unknown."""
        return len(getattr(self.inputs.train, "dataset", ()))


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
