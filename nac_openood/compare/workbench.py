"""A network on its image sets: what the methods of one run are given."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Mapping, Optional

import torch
from torch import nn

from nac_openood.bench.checkpoints import Checkpoint
from nac_openood.bench.collect import plain_worker_errors
from nac_openood.bench.head import Head, head_of
from nac_openood.bench.methods import Absent
from nac_openood.bench.scorer import Given, Scorer
from nac_openood.compare import cells
from nac_openood.compare.features import FeatureBatches, Features, features_of
from nac_openood.compare.study import Study
from nac_openood.core.fingerprint import fingerprint
from nac_openood.core.network import classify
from nac_openood.data import batches
from nac_openood.search.output import versions


@dataclass
class Workbench:
    """One run of a study.

    Args:
        study: what is compared.
        run: the checkpoint.
        net: its network.
    """

    study: Study
    run: Checkpoint
    net: nn.Module
    _features: dict[str, Features] = field(default_factory=dict)

    def __post_init__(self) -> None:
        study = self.study
        self.device = next((p.device for p in self.net.parameters()), torch.device("cpu"))
        self.images = {**study.fitting_sets(), **study.sets.scored()}
        self.identity = {name: images.identity() for name, images in self.images.items()}
        self._base = {
            "versions": versions(),
            "arch": study.arch,
            "network": fingerprint(self.net),
            "device": self.device.type,
            "batch_size": study.batch_size,
        }
        self._layer: Optional[nn.Linear] = None
        self._warm = False

    def _warm_up(self) -> None:
        """The first batches take longer than any other; no method is to be charged for them."""
        if not self._warm:
            batch = next(iter(batches(self.study.loader(self.images["test"]))))
            for _ in range(2):
                classify(self.net, batch.data)
            self._warm = True

    def features(self, name: str) -> Features:
        """Features of a set, from disk or from the pass that all methods share."""
        if name not in self._features:
            path = self.study.out / "runs" / self.run.name / "features" / f"{name}.safetensors"
            images = self.images[name]
            with plain_worker_errors():
                self._features[name] = features_of(
                    path, self.net, self.study.loader(images),
                    {**self._base, "images": self.identity[name]},
                    title=name, progress=self.study.progress, before=self._warm_up,
                )  # fmt: skip
        return self._features[name]

    def accuracy(self) -> float:
        """On the ID test set, and the shifted ones where they count as ID, in percent."""
        names = [n for n, role in self.study.sets.roles().items() if role in ("id", "csid")]
        found = [self.features(name) for name in names]
        right = sum(int((f.prediction == f.label).sum()) for f in found)
        return 100 * right / sum(len(f.label) for f in found)

    def loader(self, name: str, needs: str) -> Any:
        """Batches of a set's images, or of its features."""
        if needs == "features":
            features = partial(self.features, name)
            return FeatureBatches(features, len(self.images[name]), self.study.batch_size)
        return self.study.loader(self.images[name])

    def given(self, needs: str) -> Given:
        """What a method may look at before the test data."""
        study = self.study
        fitting = {n: self.loader(n, needs) for n in study.fitting_sets()}
        return Given(
            self._head() if needs == "features" else self.net,
            study.sets.name, study.sets.n_classes, fitting["train"], fitting["id_val"],
            fitting.get("ood_val"), std=study.sets.std, seed=study.seed, progress=study.progress,
        )  # fmt: skip

    def made_with(self, scorer: Scorer) -> dict[str, Any]:
        """What a method's set-up depends on, as it will come back out of a file."""
        fitting = {name: self.identity[name] for name in self.study.fitting_sets()}
        depends: dict[str, Any] = {
            **self._base,
            "seed": self.study.seed,
            "fitting": fitting,
            "implementation": scorer.implementation,
            "settings": dict(scorer.settings),
        }
        as_read: dict[str, Any] = json.loads(json.dumps(depends))  # a tuple comes back a list
        return as_read

    def pending(self, folder: Path, made_with: Mapping[str, Any]) -> list[str]:
        """The test sets that have no scores made with the same."""
        return [
            name for name in self.study.sets.scored() if not self._done(folder, name, made_with)
        ]

    def _done(self, folder: Path, name: str, made_with: Mapping[str, Any]) -> bool:
        found = cells.read_cell(folder / f"{name}.safetensors")
        wanted = {**made_with, "images": self.identity[name]}
        return found is not None and found[1].get("made_with") == wanted

    def _head(self) -> Head:
        if self.features("test").headless:
            raise Absent(self.features("test").headless)
        if self._layer is None:
            sample = next(iter(batches(self.study.loader(self.images["test"])))).data
            self._layer = head_of(self.net, sample)[1]
        return Head(self._layer)
