"""Baselines of pytorch-ood that read layers inside the network or change its input."""

from __future__ import annotations

import os
from typing import Any, Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from nac_openood.benchmark.methods.pytorch_ood import (
    OnNetwork,
    check_classes,
    collect,
    detectors,
    in_parts,
    labelled,
)
from nac_openood.benchmark.methods.scorer import MethodInputs, Point
from nac_openood.benchmark.methods.table import Absent
from nac_openood.errors import NACError
from nac_openood.network.architectures import recognize, table_layers
from nac_openood.network.inputs import device_of, logits_of
from nac_openood.network.replica import EndOfPass, run

#: What OpenOOD assumes if it does not know how images were normalized.
_STD = (0.5, 0.5, 0.5)


def fit_odin(inputs: MethodInputs) -> OnNetwork:
    """Softmax at a temperature, of an image moved towards its predicted class."""
    passes: list[Tensor] = []

    def logits(x: Tensor) -> Tensor:
        found = logits_of(run(inputs.net, x), x)
        passes.append(found.detach())
        return found

    def use(point: Point) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        eps, temperature, std = point["noise"], point["temperature"], list(inputs.std or _STD)
        detector = detectors().ODIN(logits, eps=eps, temperature=temperature, norm_std=std)

        def outliers(x: Tensor) -> tuple[Tensor, Tensor]:
            passes.clear()
            outlier = detector.predict(x)
            return outlier, passes[0]  # the first of the detector's two passes has `x` itself

        return outliers

    return use


def fit_mds_ensemble(inputs: MethodInputs) -> OnNetwork:
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
            raise EndOfPass

        run(net, x, on_input=[(stage, observe)])
        return found[0].flatten(2).mean(dim=2).float()

    values, label = collect(net, inputs.train, encode)
    check_classes("mds_ensemble", label, inputs.n_classes)
    detector, device = detectors().MahalanobisODIN(encode, norm_std=list(_STD)), device_of(net)
    detector.fit_features(values.to(device), label.to(device))

    def use(point: Point) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        detector.eps = point["noise"]

        def outliers(x: Tensor) -> tuple[Tensor, Tensor]:
            outlier = detector.predict(x)
            with torch.no_grad():
                return outlier, logits_of(run(net, x), x)

        return outliers

    return use


def fit_rankfeat(inputs: MethodInputs) -> OnNetwork:
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

    def use(point: Point) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        energy = detectors().EnergyBased(None, t=point["temperature"])

        @torch.no_grad()
        def outliers(x: Tensor) -> tuple[Tensor, Tensor]:
            logits, outputs = _outputs(net, stages, x, copies=True)
            fused = torch.zeros_like(logits, dtype=torch.float32)
            for stage, maps in zip(stages, outputs):
                fused += without_largest(stage, x, maps)
            return energy.predict_logits(fused / len(outputs)), logits

        return outliers

    return use


def fit_gram(inputs: MethodInputs) -> OnNetwork:
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
    numbers = sum(each.numel() for each in first)

    def use(point: Point) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        powers, train = list(point["powers"]), _TrainingParts(inputs, numbers)
        _check_memory(sum(each.shape[1] for each in first) * len(powers), len(train))
        seen: list[Any] = []

        # the detector expects a chain of layers: the first runs the network, the others replay
        def start(x: Tensor) -> Tensor:
            seen[:] = read(x)
            return seen[1][0]

        replay = [lambda _, i=i: seen[1][i] for i in range(1, len(first))]
        detector = detectors().Gram(
            lambda _: seen[0], [start, *replay], inputs.n_classes, num_poles_list=powers
        )
        detector.to(device_of(net)).fit(train)
        detector.to(device_of(net))  # its statistics are on the CPU

        @torch.no_grad()
        def outliers(x: Tensor) -> tuple[Tensor, Tensor]:
            found = []
            for part in in_parts(x, numbers):  # the maps of a whole batch may not fit in memory
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
        seen = []
        for x, label in labelled(self.inputs.net, self.inputs.train):
            seen.append(label)
            parts = in_parts(x, self.numbers)
            yield from zip(parts, label.split(len(parts[0])))
        check_classes("gram", torch.cat(seen), self.inputs.n_classes)

    def __len__(self) -> int:
        """Number of images, 0 if unknown."""
        dataset: Any = getattr(self.inputs.train, "dataset", ())
        return len(dataset) if hasattr(dataset, "__len__") else 0


def _check_memory(numbers: int, images: int) -> None:
    """Raise an error if Gram's statistics would not fit into the memory of this machine."""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        needed = 4 * numbers * images
        installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > 0.8 * installed:
            raise NACError(
                f"gram keeps {numbers} numbers of each of {images} training images, "
                f"{needed / 2**30:.0f} GB; this machine has {installed / 2**30:.0f} GB. Leave gram "
                "out of `methods`, or use less training data."
            )


def _stages(method: str, net: nn.Module, *names: str) -> list[nn.Module]:
    """Stages of a network by their names in the architecture table.

    Raises:
        Absent: the network has no such stages with maps `[batch, channels, height, width]`.
    """
    found = {layer.alias: layer for layer in table_layers(net)}
    if all(name in found and found[name].layout == "maps" for name in names):
        modules = dict(net.named_modules())
        return [modules[found[name].path] for name in names]
    row = recognize(net)
    what = "is not in the architecture table" if row is None else f"is a {row[0].name}"
    raise Absent(
        f"{method} needs feature maps [batch, channels, height, width] of {' and '.join(names)}, "
        f"as a ResNet has them, but {type(net).__name__} {what} without such maps. Leave {method} "
        "out for this network."
    )


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
