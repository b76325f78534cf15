"""Reads a checkpoint once and stores what rankings are computed from.

One file holds `z * g` of the correctly classified training samples, from which their states are
computed, and for all other data which samples are classified correctly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Optional, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from nac_openood.core.histogram import LinearHistogram, state_argument
from nac_openood.core.layer_config import IntegralConfig, refuse_unknown, sigmoid
from nac_openood.core.reading import Reading, broken_error, not_finite
from nac_openood.core.tensors import stored_tensor, stored_values
from nac_openood.detector.batches import bar, batches
from nac_openood.errors import FileError, NACError
from nac_openood.evaluation.integral import labeled_passes, layer_reader
from nac_openood.files import PathLike, damage
from nac_openood.network.probe import classify
from nac_openood.network.replica import kept_random_state
from nac_openood.records import checked
from nac_openood.sources.samples import Samples
from nac_openood.sources.sets import check_file_names, check_mapping
from nac_openood.tensor_files import TensorWriter, read_tensors

_KIND, _VERSION = "nac_openood checkpoint readings", 1
_STATES = "z*g"
_SLICE = 1000

#: By role ("train", "val", "test", "oracle") and name of the domain.
SamplesByRole = Mapping[tuple[str, str], Samples]


def domain_samples(roles: Mapping[str, Mapping[str, Any]], **options: Any) -> SamplesByRole:
    """The data that checkpoints are ranked with.

    Args:
        roles: labeled datasets by role and domain, without augmentation: `train` and `val` of the
            source domains; `test` of the target domains, if there are any; `oracle`, other data of
            the target domains by which the oracle chooses.
        options: `batch_size`, `workers` and `progress`.
    """
    for role, domains in roles.items():
        check_mapping(role, domains, "names of domains", "sketch")
        check_file_names("a domain", domains)
        if role in ("train", "val") and not domains:
            raise NACError(f"`{role}` has no domain: expected at least one.")
    if roles["oracle"] and not roles["test"]:
        raise NACError("`oracle` needs `test`: there is no target domain to test on.")
    return {
        (role, name): Samples(f"{role} domain {name}", data, **options)
        for role, domains in roles.items()
        for name, data in domains.items()
    }


@dataclass(frozen=True)
class CheckpointReadings:
    """The stored readings of a checkpoint.

    Args:
        layer: module path of the layer.
        product: `[correct, neurons]`, `z * g` of the correctly classified training samples.
        correct: by role and domain, uint8 `[samples]`, 1 where the prediction is right.
        made_with: the network, data and settings; the readings are reused only if these are equal.
    """

    layer: str
    product: Tensor
    correct: Mapping[str, Mapping[str, Tensor]]
    made_with: Mapping[str, Any]

    def accuracies(self, role: str) -> dict[str, float]:
        """The share of correct predictions, by domain."""
        return {name: float(c.double().mean()) for name, c in self.correct.get(role, {}).items()}

    def accuracy(self, role: str) -> Optional[float]:
        """Mean accuracy over the domains of a role; None if it has none."""
        found = self.accuracies(role)
        return float(np.mean(list(found.values()))) if found else None

    def coverage(self, configs: Sequence[IntegralConfig]) -> list[float]:
        """G with each of these settings, without the network.

        States are computed once per steepness and counted once per number of bins.
        """
        neurons, device = self.product.shape[1], self.product.device
        histograms = {
            (c.steepness, c.n_bins): LinearHistogram.empty(neurons, c.n_bins, device)
            for c in configs
        }
        for part in self.product.split(_SLICE):
            for steepness in dict.fromkeys(key[0] for key in histograms):
                states = sigmoid(steepness * part)
                for (other, _), histogram in histograms.items():
                    if other == steepness:
                        histogram.update(states)
        return [histograms[c.steepness, c.n_bins].integral(c.full_count) for c in configs]

    @classmethod
    def extract(
        cls, path: PathLike, net: nn.Module, samples: SamplesByRole, made_with: Mapping[str, Any]
    ) -> CheckpointReadings:
        """Read all domains once and write the file, atomically.

        Args:
            path: of the file.
            net: the network with the weights of the checkpoint.
            samples: what to read. Only training data needs gradients.
            made_with: stored in the file; its `layer` and `layout` are those of
                `coverage_integral`.
        """
        reader = layer_reader(net, made_with["layer"], made_with["layout"])
        layer = ""
        with TensorWriter(path) as writer:
            for (role, name), data in samples.items():
                title, key = f"{role} {name}", f"{role}/{name}"
                if role != "train":
                    for flags in _correct(net, data, title):
                        writer.add({key: flags})
                    continue
                passes = labeled_passes(reader, data.loader(), title, data.progress)
                for layer, read, label in passes:
                    right = read.logits.argmax(dim=1).cpu() == label.cpu()
                    product = state_argument(layer, read[layer])[right.to(read.logits.device)]
                    broken = int(not_finite(Reading(product)).sum())
                    if broken:
                        raise broken_error(broken, f"{len(product)} samples of {title}", layer)
                    writer.add({_STATES: product, key: right.to(torch.uint8)})
            domains: dict[str, list[str]] = {}
            for role, name in samples:
                domains.setdefault(role, []).append(name)
            about = {"layer": layer, "domains": domains, "made_with": dict(made_with)}
            writer.finish(_KIND, _VERSION, about)
        return cls.load(path)

    @classmethod
    def load(cls, path: PathLike) -> CheckpointReadings:
        """Map a file that `extract` wrote."""
        tensors, about = read_tensors(path, _KIND, _VERSION)
        with damage(path, "Delete it"):
            layer = checked(str, about.get("layer"), "layer")
            made_with = checked(Mapping[str, Any], about.get("made_with"), "made_with")
            domains = checked(Mapping[str, tuple[str, ...]], about.get("domains"), "domains")
            correct = {
                role: {n: stored_tensor(tensors, f"{role}/{n}", torch.uint8, 1) for n in names}
                for role, names in domains.items()
            }
            product = stored_values(tensors, _STATES, 2)
            named = {f"{role}/{name}" for role, names in domains.items() for name in names}
            refuse_unknown(tensors, {_STATES, *named}, "tensor")
            right = sum(int(flags.sum()) for flags in correct.get("train", {}).values())
            if right != len(product) or "val" not in correct:
                raise NACError("it does not hold all of the training and validation data.")
        return cls(layer, product, correct, made_with)

    @classmethod
    def load_if(
        cls, path: PathLike, samples: SamplesByRole, made_with: Mapping[str, Any]
    ) -> Optional[CheckpointReadings]:
        """Load what an earlier call wrote, if `made_with` is equal and it holds all samples."""
        try:
            found = cls.load(path)
        except FileError:
            return None
        sizes = {(r, n): len(c) for r, names in found.correct.items() for n, c in names.items()}
        whole = sizes == {at: len(data) for at, data in samples.items()}
        return found if whole and dict(found.made_with) == dict(made_with) else None


def _correct(net: nn.Module, samples: Samples, title: str) -> Iterator[Tensor]:
    """Which predictions are right, uint8 `[batch]`."""
    with kept_random_state():
        for batch in batches(bar(samples.loader(), title, samples.progress)):
            predicted = classify(net, batch.data).argmax(dim=1).cpu()
            yield (predicted == batch.labels()).to(torch.uint8)
