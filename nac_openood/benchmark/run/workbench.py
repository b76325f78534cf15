"""One network of a study: its loaders and features, and what its methods are given."""

from __future__ import annotations

import json
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Mapping

from torch import nn

from nac_openood.benchmark.methods.scorer import Given, Scorer
from nac_openood.benchmark.methods.table import Absent, Method
from nac_openood.benchmark.run import cells
from nac_openood.benchmark.run.features import FeatureBatches, Features, features_of
from nac_openood.benchmark.run.study import Study
from nac_openood.detector.batches import batches
from nac_openood.network.fingerprint import fingerprint
from nac_openood.network.head import Head, head_of
from nac_openood.network.inputs import device_of
from nac_openood.network.probe import classify
from nac_openood.search.output import versions
from nac_openood.sources.checkpoints import Checkpoint


class Workbench:
    """One network of a study.

    Args:
        study: what is compared.
        run: name and checkpoint of the network.
        net: the network.
    """

    def __init__(self, study: Study, run: Checkpoint, net: nn.Module) -> None:
        self.study, self.run, self.net = study, run, net
        self.device = device_of(net)
        self.samples = {**study.fitting, **study.scored}
        self.identity = {n: s.identity if study.reuse else "" for n, s in self.samples.items()}
        self._base = {
            "versions": versions(),
            "arch": study.arch,
            "network": fingerprint(net),
            "device": self.device.type,
            "batch_size": study.batch_size,
        }
        self._warm = False
        self._features: dict[str, Features] = {}

    def _warm_up(self) -> None:
        """Run two batches that are not timed: the first ones take longer than all others."""
        if not self._warm:
            for _ in range(2):
                classify(self.net, self._first_batch())
            self._warm = True

    def _first_batch(self) -> Any:
        return next(iter(batches(self.study.scored["test"].loader()))).data

    def features(self, name: str) -> Features:
        """Features of a dataset, from disk or from the pass that methods share."""
        if name not in self._features:
            samples = self.samples[name]
            self._features[name] = features_of(
                self.study.out / "runs" / self.run.name / "features" / f"{name}.safetensors",
                self.net, samples.loader(), len(samples),
                {**self._base, "images": self.identity[name]},
                title=name, progress=self.study.progress, before=self._warm_up,
            )  # fmt: skip
        return self._features[name]

    def accuracy(self) -> float:
        """On the ID test set, and the shifted ones for full-spectrum detection, in percent."""
        names = [n for n, role in self.study.sets.roles().items() if role in ("id", "csid")]
        found = [self.features(name) for name in names]
        right = sum(int((f.prediction == f.label).sum()) for f in found)
        return 100 * right / sum(len(f.label) for f in found)

    def loader(self, name: str, needs: str) -> Any:
        """Batches of a dataset, or of its features."""
        samples = self.samples[name]
        if needs == "features":
            features = partial(self.features, name)
            return FeatureBatches(features, len(samples), self.study.batch_size)
        return samples.loader()

    def given(self, needs: str) -> Given:
        """What a method may look at before the test data."""
        study = self.study
        fitting = {name: self.loader(name, needs) for name in study.fitting}
        return Given(
            self._head_of_features() if needs == "features" else self.net,
            study.sets.id_name, study.sets.n_classes, fitting["train"], fitting["id_val"],
            fitting.get("ood_val"), search=study.search, std=study.sets.std, seed=study.seed,
            progress=study.progress,
        )  # fmt: skip

    def prepare_features(self, method: Method) -> None:
        """Make the features of all datasets that a method looks at."""
        for name in self.samples:
            if name != "train" or method.uses_train:
                self.features(name)

    def made_with(self, scorer: Scorer) -> dict[str, Any]:
        """What a method's setup depends on, as it is read back from a file."""
        depends: dict[str, Any] = {
            **self._base,
            "seed": self.study.seed,
            "fitting": {name: self.identity[name] for name in self.study.fitting},
            "implementation": scorer.implementation,
            "settings": dict(scorer.settings),
        }
        return json.loads(json.dumps(depends))  # tuples become lists

    def pending(self, folder: Path, made_with: Mapping[str, Any]) -> list[str]:
        """The test sets that have no scores made with the same."""
        return [name for name in self.study.scored if not self._done(folder, name, made_with)]

    def _done(self, folder: Path, name: str, made_with: Mapping[str, Any]) -> bool:
        found = cells.read_cell(folder / f"{name}.safetensors")
        if found is None or cells.cost_of(found[1]) is None:
            return False
        same = found[1].get("made_with") == {**made_with, "images": self.identity[name]}
        return same and len(found[0].score) == len(self.samples[name])

    @cached_property
    def head(self) -> Head:
        """The linear head; `get_fc()` gives its weight `[classes, D]` and bias `[classes]`.

        Raises:
            NACError: the network does not end in a linear layer.
        """
        return Head(head_of(self.net, self._first_batch())[1])

    def _head_of_features(self) -> Head:
        if self.features("test").headless:
            raise Absent(self.features("test").headless)
        return Head(self.head.fc)  # one for each method, which may do with it what it likes
