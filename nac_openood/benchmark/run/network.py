"""One network of a study: its loaders, what methods may use, and the pass that methods share."""

from __future__ import annotations

import json
import math
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, NamedTuple, Optional

import torch
from torch import Tensor, nn

from nac_openood import files, tensor_files
from nac_openood.benchmark.methods.scorer import MethodInputs, Scorer
from nac_openood.benchmark.methods.table import Absent, Method
from nac_openood.benchmark.run.cost import Meter, Timing
from nac_openood.benchmark.run.store import method_folder
from nac_openood.core.rule import stored_tensor
from nac_openood.detector.batches import Batch, batches, load_batches
from nac_openood.distributed import from_main, map_shared
from nac_openood.errors import FileError, NACError
from nac_openood.network.fingerprint import fingerprint
from nac_openood.network.head import Head, head_of, with_features
from nac_openood.network.inputs import device_of
from nac_openood.network.probe import classify
from nac_openood.sources.checkpoints import Checkpoint
from nac_openood.tensor_files import TensorWriter, versions

if TYPE_CHECKING:
    from nac_openood.benchmark.run.compare import Study

_KIND, _VERSION = "nac_openood features", 2


class Features(NamedTuple):
    """The features and predictions of a network on a dataset, mapped from a file.

    Args:
        feature: penultimate features `[samples, D]`; None if the network has no linear head.
        prediction: int64 `[samples]`.
        label: int64 `[samples]`, -1 where there is none.
        timing: how long the pass took.
    """

    feature: Optional[Tensor]
    prediction: Tensor
    label: Tensor
    timing: Timing


class FeatureBatches:
    """A loader of features: batches `{'data', 'label'}` as large as those of the samples.

    Args:
        features: returns the features; called when the first batch is requested.
        n_samples: number of samples.
        batch_size: samples per batch.

    Attributes:
        timing: time of the pass over the network, once a batch was requested.
    """

    def __init__(self, features: Callable[[], Features], n_samples: int, batch_size: int) -> None:
        self._features, self._n, self.batch_size = features, n_samples, batch_size
        self.timing = Timing()

    def __len__(self) -> int:
        return math.ceil(self._n / self.batch_size)

    @property
    def dataset(self) -> range:
        """Something with as many entries as there are samples."""
        return range(self._n)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        found = self._features()
        assert found.feature is not None
        self.timing = found.timing
        for row in range(0, self._n, self.batch_size):
            rows = slice(row, row + self.batch_size)
            # copies: a method may write into its input, and a mapped file is read-only
            yield {"data": found.feature[rows].clone(), "label": found.label[rows].clone()}


class NetworkRun:
    """One network of a study.

    Methods that need only penultimate features share one pass over each dataset, whose features
    are stored in a file.

    Args:
        study: what is compared.
        checkpoint: name and checkpoint of the network.
        net: the network.
    """

    def __init__(self, study: Study, checkpoint: Checkpoint, net: nn.Module) -> None:
        self.study, self.checkpoint, self.net = study, checkpoint, net
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
        self._features: dict[str, Features] = {}

    def folder(self, method: Method) -> Path:
        """The folder of the results of a method."""
        return method_folder(self.study.out, self.checkpoint.name, method.name)

    def made_with(self, scorer: Scorer) -> dict[str, Any]:
        """Everything that a method's setup depends on, as JSON values."""
        depends: dict[str, Any] = {
            **self._base,
            "seed": self.study.seed,
            "fitting": {name: self.identity[name] for name in self.study.fitting},
            "implementation": scorer.implementation,
            "settings": dict(scorer.settings),
        }
        return json.loads(json.dumps(depends))  # tuples become lists, as when read from a file

    def inputs(self, needs: str) -> MethodInputs:
        """What a method may use before it scores test data.

        Raises:
            Absent: the method needs features, and the network does not end in a linear layer.
        """
        study = self.study
        fitting = {name: self.loader(name, needs) for name in study.fitting}
        return MethodInputs(
            self.head if needs == "features" else self.net,
            study.sets.id_name, study.sets.n_classes, fitting["train"], fitting["id_val"],
            fitting.get("ood_val"), search=study.search, std=study.sets.std, seed=study.seed,
            progress=study.progress,
        )  # fmt: skip

    def loader(self, name: str, needs: str) -> Any:
        """Batches of a dataset, or of its features."""
        samples = self.samples[name]
        if needs == "features":
            features = partial(self.features, name)
            return FeatureBatches(features, len(samples), self.study.batch_size)
        return samples.loader()

    @property
    def head(self) -> Head:
        """A copy of the linear head, which the caller may modify.

        Raises:
            Absent: the network does not end in a linear layer.
        """
        layer, problem = self._head
        if layer is None:
            raise Absent(problem)
        return Head(layer)

    @cached_property
    def _head(self) -> tuple[Optional[nn.Linear], str]:
        """The linear layer that gives the logits, or None and why there is none."""
        x = next(iter(batches(self.study.scored["test"].loader()))).data
        classify(self.net, x)  # before anything is timed: the first batch takes longest
        try:
            return head_of(self.net, x)[1], ""
        except NACError as error:
            return None, str(error)

    def accuracy(self) -> float:
        """Accuracy in percent on the ID test set, and on the covariate-shifted ones if any."""
        names = [n for n, role in self.study.sets.roles().items() if role in ("id", "csid")]
        found = [self.features(name) for name in names]
        right = sum(int((f.prediction == f.label).sum()) for f in found)
        return 100 * right / sum(len(f.label) for f in found)

    def features(self, name: str) -> Features:
        """Features of a dataset, from the file of an earlier pass or from a new one."""
        if name not in self._features:
            path = self.study.out / "runs" / self.checkpoint.name / "features"
            path, n_samples = path / f"{name}.safetensors", len(self.samples[name])
            made_with = {**self._base, "images": self.identity[name]}
            found = _read_features(path, n_samples, made_with)
            if from_main(f"features {name}", lambda: found is None):  # the main process decides
                self._write_features(path, name, made_with)
                found = _read_features(path, n_samples, made_with)
            if found is None:
                raise FileError(
                    f"{path} was written but cannot be read back: expected {n_samples} samples. "
                    "Check the disk, and that the dataset yields one item per index."
                )
            self._features[name] = found
        return self._features[name]

    def _write_features(self, path: Path, name: str, made_with: Mapping[str, Any]) -> None:
        files.make_folder(path.parent)
        layer, headless = self._head

        def work(item: tuple[Batch, float]) -> tuple[dict[str, Tensor], float]:
            batch, loading = item
            with Meter(self.device, memory=False) as running:
                if layer is None:
                    logits, features = classify(self.net, batch.data), {}
                else:
                    found = with_features(self.net, batch.data, layer)
                    logits, features = found.logits, {"feature": found.features.cpu()}
                rows = {"prediction": logits.argmax(dim=1).cpu(), **features}
            return {**rows, "label": batch.labels()}, loading + running.seconds

        times = []
        with TensorWriter(path) as writer:
            for rows, seconds in map_shared(f"features {name}", self._loaded(name), work):
                # writing is not part of the pass: a method that runs alone writes nothing
                writer.add(rows)
                times.append((len(rows["prediction"]), seconds))
            about = {"made_with": dict(made_with), "timing": Timing(times), "headless": headless}
            writer.finish(_KIND, _VERSION, about)

    def _loaded(self, name: str) -> Iterator[tuple[Batch, float]]:
        """The batches of this process, and how long each took to load."""
        title = f"features {name}"
        stream = iter(load_batches(self.samples[name].loader(), title, self.study.progress))
        while True:
            with Meter(self.device, memory=False) as loading:
                batch = next(stream, None)
            if batch is None:
                return
            if batch.in_shard:
                yield batch, loading.seconds


def _read_features(path: Path, n_samples: int, made_with: Mapping[str, Any]) -> Optional[Features]:
    """The features in a file; None if it is missing, damaged, or of other data or code."""
    try:
        tensors, about = tensor_files.read_tensors(path, _KIND, _VERSION)
        prediction = stored_tensor(tensors, "prediction", torch.int64, 1)
        label = stored_tensor(tensors, "label", torch.int64, 1)
        feature, timing = tensors.get("feature"), Timing.read(about["timing"])
        if feature is not None:
            stored_tensor(tensors, "feature", feature.dtype, 2)
        usable = bool(about["headless"]) if feature is None else feature.is_floating_point()
    except (KeyError, TypeError, ValueError):  # NACError is a ValueError
        return None
    same = about.get("made_with") == dict(made_with)
    whole = all(rows.shape[:1] == (n_samples,) for rows in tensors.values())
    return Features(feature, prediction, label, timing) if same and whole and usable else None
