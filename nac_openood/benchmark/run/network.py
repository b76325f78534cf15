"""One network of a study: the pass that methods share, and the methods on it."""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, NamedTuple, Optional, Union

import numpy as np
from torch import Tensor, nn

from nac_openood import files, tensor_files
from nac_openood.benchmark.methods.scorer import MethodInputs, MethodSetup, Scorer
from nac_openood.benchmark.methods.table import Absent, Method
from nac_openood.benchmark.run import store
from nac_openood.benchmark.run.cost import Meter
from nac_openood.benchmark.run.store import StoredScores
from nac_openood.detector.batches import Batch, batches, load_batches
from nac_openood.detector.outcomes import Scores
from nac_openood.distributed import from_main, map_shared, synchronized
from nac_openood.errors import FileError, NACError, error_text
from nac_openood.network.fingerprint import fingerprint
from nac_openood.network.head import Head, head_of, with_features
from nac_openood.network.inputs import device_of
from nac_openood.network.probe import classify
from nac_openood.sources.checkpoints import Checkpoint

if TYPE_CHECKING:
    from nac_openood.benchmark.run.compare import Study

_KIND, _VERSION = "nac_openood features", 2
#: Why a method has no scores: "failed" or "absent", and the error.
Failure = tuple[str, str]


class Features(NamedTuple):
    """The features and predictions of a network on a dataset, mapped from a file.

    Args:
        feature: penultimate features `[samples, D]`; None if the network has no linear head.
        prediction: int64 `[samples]`.
        label: int64 `[samples]`, -1 where there is none.
        seconds: how long the pass took.
    """

    feature: Optional[Tensor]
    prediction: Tensor
    label: Tensor
    seconds: float = 0.0


class FeatureBatches:
    """A loader of features: batches `{'data', 'label'}` as large as those of the samples.

    Args:
        features: returns the features; called when the first batch is requested.
        n_samples: number of samples.
        batch_size: samples per batch.

    Attributes:
        dataset: something with as many entries as there are samples.
        seconds: how long the pass over the network took, once a batch was requested.
    """

    def __init__(self, features: Callable[[], Features], n_samples: int, batch_size: int) -> None:
        self._features, self.batch_size = features, batch_size
        self.dataset, self.seconds = range(n_samples), 0.0

    def __len__(self) -> int:
        return math.ceil(len(self.dataset) / self.batch_size)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        found = self._features()
        assert found.feature is not None
        self.seconds = found.seconds
        for x, y in zip(found.feature.split(self.batch_size), found.label.split(self.batch_size)):
            # copies: a method may write into its input, and a mapped file is read-only
            yield {"data": x.clone(), "label": y.clone()}


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
            "versions": tensor_files.versions(),
            "arch": study.arch,
            "network": fingerprint(net),
            "device": self.device.type,
            "batch_size": study.batch_size,
        }
        self._features: dict[str, Features] = {}

    # -- what methods may use ------------------------------------------------------------------

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
        if needs != "features":
            return samples.loader()
        return FeatureBatches(partial(self.features, name), len(samples), self.study.batch_size)

    @property
    def head(self) -> Head:
        """A copy of the linear head, which the caller may modify.

        Raises:
            Absent: the network does not end in a linear layer.
        """
        if isinstance(self._head, str):
            raise Absent(self._head)
        return Head(self._head)

    @cached_property
    def _head(self) -> Union[nn.Linear, str]:
        """The linear layer that gives the logits, or why there is none."""
        x = next(iter(batches(self.study.scored["test"].loader()))).data
        classify(self.net, x)  # before anything is timed: the first batch takes longest
        try:
            return head_of(self.net, x)[1]
        except NACError as error:
            return str(error)

    # -- the shared pass -----------------------------------------------------------------------

    @cached_property
    def accuracy(self) -> float:
        """Accuracy in percent on the ID test set, and on the covariate-shifted ones if any."""
        names = [n for n, role in self.study.sets.roles().items() if role in ("id", "csid")]
        found = [self.features(name) for name in names]
        right = sum(int((f.prediction == f.label).sum()) for f in found)
        return 100 * right / sum(len(f.label) for f in found)

    def features(self, name: str) -> Features:
        """Features of a dataset, from the file of an earlier pass or from a new one."""
        if name not in self._features:
            folder = store.method_folder(self.study.out, self.checkpoint.name, "features")
            path, n_samples = folder / f"{name}.safetensors", len(self.samples[name])
            made_with = {**self._base, "images": self.identity[name]}
            found = _read_features(path, n_samples, made_with)
            if from_main(f"features {name}", lambda: found is None):  # the main process decides
                self._write_features(path, name, made_with)
                found = _read_features(path, n_samples, made_with)
            assert found is not None, f"{path} was written and cannot be read"
            self._features[name] = found
        return self._features[name]

    def _write_features(self, path: Path, name: str, made_with: Mapping[str, Any]) -> None:
        files.make_folder(path.parent)
        layer, title = self._head, f"features {name}"
        start = time.perf_counter()

        def work(batch: Batch) -> tuple[dict[str, Tensor], float]:
            if isinstance(layer, str):
                rows = {"prediction": classify(self.net, batch.data).argmax(dim=1).cpu()}
            else:
                logits, feature = with_features(self.net, batch.data, layer)[:2]
                rows = {"prediction": logits.argmax(dim=1).cpu(), "feature": feature.cpu()}
            return {**rows, "label": batch.labels()}, time.perf_counter() - start

        loaded = load_batches(self.samples[name].loader(), title, self.study.progress)
        total = 0.0
        with tensor_files.TensorWriter(path) as writer:
            for rows, seconds in map_shared(title, (b for b in loaded if b.in_shard), work):
                writer.add(rows)
                total += seconds
                # writing is not part of the pass: a method that runs alone writes nothing
                start = time.perf_counter()
            writer.finish(_KIND, _VERSION, {"made_with": made_with, "timing": total})

    # -- methods -------------------------------------------------------------------------------

    def run_method(self, method: Method, step: str) -> Optional[Failure]:
        """Set a method up and score the test sets, as far as there are no stored results.

        Args:
            method: a row of the method table.
            step: its number and title, for messages.

        Returns:
            Why there are no results; None if there are.
        """
        try:
            with synchronized(method.name):  # if it fails in one process, it fails in all of them
                scorer = self.study.make(method, self.checkpoint)
                pending, chosen = from_main("stored", lambda: self._stored(method, scorer))
                done = ": done before" if not pending and chosen is not None else ""
                self.study.say(f"{step} ({scorer.implementation}){done}")
                if not done:
                    self._set_up(method, scorer, chosen)
                    for name in pending:
                        self._score(method, scorer, name)
            return None
        except Absent as error:
            self.study.say(f"{step} is absent: {error}")
            return "absent", error_text(error)
        except FileError:  # a full disk: no other method would succeed
            raise
        except Exception as error:  # third-party methods may raise anything
            self.study.say(f"{step} failed: {error_text(error)}")
            return "failed", error_text(error)

    def _folder(self, method: Method) -> Path:
        return store.method_folder(self.study.out, self.checkpoint.name, method.name)

    def _stored(
        self, method: Method, scorer: Scorer
    ) -> tuple[list[str], Optional[Mapping[str, Any]]]:
        """The test sets without stored scores, and the hyperparameters if they are stored."""
        folder, made_with, pending = self._folder(method), self.made_with(scorer), []
        for name, samples in self.study.scored.items():
            found = store.read_scores(folder / f"{name}.safetensors")
            same = {**made_with, "images": self.identity[name]}
            if found is None or (found.made_with, len(found.scores.score)) != (same, len(samples)):
                pending.append(name)
        setup = store.read_note(folder / "setup.json") or {}
        same_setup = setup.get("made_with") == made_with
        return pending, setup["hyperparameters"] if same_setup else None

    def _set_up(self, method: Method, scorer: Scorer, chosen: Optional[Mapping[str, Any]]) -> None:
        inputs = self.inputs(method.needs)
        if method.needs == "features":
            # before the meter starts: time and memory of the shared pass are measured separately
            for name in self.samples:
                if name != "train" or method.uses_train:
                    self.features(name)
        with Meter(self.device) as meter:
            setup = scorer.setup(inputs, chosen) or MethodSetup()
        if chosen is not None:
            return  # the stored setup describes the search, which was not repeated
        loaders = inputs.train, inputs.id_val, inputs.ood_val
        note = {
            "made_with": self.made_with(scorer),
            "hyperparameters": dict(setup.hyperparameters),
            "search": setup.search,
            "advice": setup.advice,
            "seconds": max(0.0, meter.seconds - setup.advice_seconds) + _pass_seconds(*loaders),
            "peak_mb": meter.peak_mb,
        }
        store.write_note(self._folder(method) / "setup.json", note)

    def _score(self, method: Method, scorer: Scorer, name: str) -> None:
        loader = self.loader(name, method.needs)
        with Meter(self.device) as meter:
            scores = checked_scores(scorer.score(loader), len(self.samples[name]), name)
        made_with = {**self.made_with(scorer), "images": self.identity[name]}
        seconds = meter.seconds, _pass_seconds(loader)
        stored = StoredScores(scores, made_with, *seconds, meter.peak_mb)
        store.write_scores(self._folder(method) / f"{name}.safetensors", stored)


def _pass_seconds(*loaders: Any) -> float:
    """How long the shared passes took whose features were used."""
    return sum(loader.seconds for loader in loaders if isinstance(loader, FeatureBatches))


def _read_features(path: Path, n_samples: int, made_with: Mapping[str, Any]) -> Optional[Features]:
    """The features in a file; None if it is missing, damaged, or of other data or code."""
    with suppress(KeyError, TypeError, ValueError):  # a FileError is a ValueError
        tensors, about = tensor_files.read_tensors(path, _KIND, _VERSION)
        seconds = store.seconds_in(about["timing"])
        found = Features(tensors.get("feature"), tensors["prediction"], tensors["label"], seconds)
        if about["made_with"] == made_with and len(found.label) == n_samples:
            return found
    return None


def checked_scores(scores: Scores, n: int, name: str) -> Scores:
    """Return the scores of `n` samples as floating-point numbers.

    Raises:
        NACError: there are more or fewer scores, or some are not finite.
    """
    if scores.score.shape != (n,):
        raise NACError(f"expected {n} scores for {name}, got {list(scores.score.shape)}.")
    score = scores.score if scores.score.dtype.kind == "f" else scores.score.astype(np.float64)
    broken = int((~np.isfinite(score)).sum())
    if broken:
        raise NACError(f"{broken} of {n} scores of {name} are NaN or Inf.")
    return scores._replace(score=score)
