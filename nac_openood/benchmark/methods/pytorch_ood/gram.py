"""Gram matrices of the outputs of all convolutions and ReLUs, as OpenOOD reads them."""

from __future__ import annotations

import os
from typing import Any, Callable, Iterator, Optional

import torch
from torch import Tensor, nn

from nac_openood.benchmark.methods.pytorch_ood import data, maps
from nac_openood.benchmark.methods.pytorch_ood.adapter import Point, in_parts
from nac_openood.benchmark.methods.pytorch_ood.on_networks import OnNetwork
from nac_openood.benchmark.methods.scorer import Given
from nac_openood.benchmark.methods.table import Absent
from nac_openood.errors import NACError
from nac_openood.network.inputs import device_of


class Gram(OnNetwork):
    """How far the Gram matrices of an image's feature maps deviate from those of its class."""

    def fit(self, given: Given) -> None:
        """Run one image to see how many feature maps there are, and how large."""
        super().fit(given)
        self.modules = [m for m in self.net.modules() if isinstance(m, (nn.ReLU, nn.Conv2d))]
        if not self.modules:
            raise Absent(
                f"gram reads the outputs of nn.Conv2d and nn.ReLU modules, and "
                f"{type(self.net).__name__} has none."
            )
        self.given: Optional[Given] = given
        first = next(data.labelled(self.net, given.train))
        with torch.no_grad():
            outputs = self._maps(first[0][:1])[1]
        self.count, self.channels = len(outputs), sum(each.shape[1] for each in outputs)
        self.numbers = sum(each.numel() for each in outputs)

    def use(self, point: Point) -> None:
        """Fit with these powers, on which everything depends."""
        assert self.given is not None
        powers = list(point["powers"])
        train = _Pairs(self, self.given)
        self._check_memory(len(powers), train)
        replay = _Replay(self._maps, self.count)
        self.detector = self.detectors.Gram(
            replay.logits, replay.steps, self.given.n_classes, num_poles_list=powers
        )
        device = device_of(self.net)
        with self.calling("fitting"):
            self.detector.to(device).fit(train)
            self.detector.to(device)  # its statistics are on the CPU

    def release(self) -> None:
        """Free the training data."""
        self.given = None

    @torch.no_grad()
    def score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outlier scores and logits, in parts: the maps of a whole batch may not fit in memory."""
        outliers, logits = [], []
        for part in in_parts(x, self.numbers):
            logits_part, outputs = self._maps(part)
            with self.calling("scoring"):
                outliers.append(self.detector.predict_structured(logits_part, outputs))
            logits.append(logits_part)
        return torch.cat(outliers), torch.cat(logits)

    def _maps(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        # not copied: after an in-place ReLU OpenOOD reads the changed maps, too
        logits, outputs = maps.outputs(self.net, self.modules, x, copies=False)
        return logits.float(), [each.float() for each in outputs]

    def _check_memory(self, n_powers: int, train: _Pairs) -> None:
        needed = 4 * self.channels * n_powers * len(train)
        if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
            there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            if needed > 0.8 * there:
                raise NACError(
                    f"gram keeps {self.channels * n_powers} numbers of each of {len(train)} "
                    f"training images, {needed / 2**30:.0f} GB; this machine has "
                    f"{there / 2**30:.0f} GB. Leave gram out of `methods`, or give it less "
                    "training data."
                )


class _Replay:
    """The maps of a pass as the chain of layers that the detector expects.

    The first step runs the network; the others return the maps that it recorded.
    """

    def __init__(self, run: Callable[[Tensor], tuple[Tensor, list[Tensor]]], count: int) -> None:
        self.run = run
        self.steps = [self._start, *(self._step(i) for i in range(1, count))]

    def _start(self, x: Tensor) -> Tensor:
        self.last, self.outputs = self.run(x)
        return self.outputs[0]

    def _step(self, i: int) -> Callable[[Tensor], Tensor]:
        return lambda _: self.outputs[i]

    def logits(self, _: Tensor) -> Tensor:
        return self.last


class _Pairs:
    """Training images as the loader of `(x, y)` that the detector expects, in small parts."""

    def __init__(self, gram: Gram, given: Given) -> None:
        self.gram, self.given = gram, given

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        seen = []
        for x, label in data.labelled(self.gram.net, self.given.train):
            seen.append(label)
            parts = in_parts(x, self.gram.numbers)
            yield from zip(parts, label.split(len(parts[0])))
        data.every_class(self.gram.name, torch.cat(seen), self.given.n_classes)

    def __len__(self) -> int:
        """Number of images, 0 if the loader does not tell."""
        dataset: Any = getattr(self.given.train, "dataset", ())
        return len(dataset) if hasattr(dataset, "__len__") else 0
