"""Read a checkpoint once; everything after that is arithmetic.

Of the training data it keeps what the state is made of, `z * g` of correctly classified samples,
and of all other data which samples are classified correctly. Both go into one file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Optional, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from nac_openood import files, tensor_files
from nac_openood.core.histogram import LinearHistogram, state_argument
from nac_openood.core.layer_config import IntegralConfig, refuse_unknown, sigmoid
from nac_openood.core.reading import Reading, not_finite
from nac_openood.core.tensors import stored_tensor, stored_values
from nac_openood.detector.batches import batches
from nac_openood.detector.config import AUTO
from nac_openood.errors import NACError
from nac_openood.evaluation.data import Domains
from nac_openood.evaluation.passes import labeled_passes, layer_reader
from nac_openood.network.probe import classify
from nac_openood.network.random_state import kept_random_state
from nac_openood.progress import bar
from nac_openood.records import from_values
from nac_openood.sources.samples import Samples
from nac_openood.tensor_files import TensorWriter

_KIND, _VERSION = "nac_openood checkpoint readings", 1
_STATES = "z*g"
_SLICE = 1000


@dataclass(frozen=True)
class CheckpointReadings:
    """What a checkpoint says about all domains.

    Args:
        layer: module path of the layer.
        product: `[correct, neurons]`, `z * g` of the correctly classified training samples.
        correct: by role and domain, uint8 `[samples]`, 1 where the prediction is right.
        made_with: what it was made with, to tell whether it can be used again.
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
    def load(cls, path: files.PathLike) -> CheckpointReadings:
        """Map a file that `extract_checkpoint` wrote."""
        tensors, about = tensor_files.read_tensors(path, _KIND, _VERSION)
        with files.damage(path, "Delete it"):
            noted = from_values(_Noted, about)
            correct = {
                role: {name: _flags(tensors, f"{role}/{name}") for name in names}
                for role, names in noted.domains.items()
            }
            product = stored_values(tensors, _STATES, 2)
            named = {f"{role}/{name}" for role, names in noted.domains.items() for name in names}
            refuse_unknown(tensors, {_STATES, *named}, "tensor")
            right = sum(int(flags.sum()) for flags in correct.get("train", {}).values())
            if right != len(product) or "val" not in correct:
                raise NACError("it does not hold all of the training and validation data.")
        return cls(noted.layer, product, correct, noted.made_with)


@dataclass(frozen=True)
class _Noted:
    """What a file says beside its tensors: `domains` are names by role."""

    layer: str
    domains: Mapping[str, tuple[str, ...]]
    made_with: Mapping[str, Any]


def _flags(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """Which predictions are right, uint8 `[samples]`, of a file."""
    found = stored_tensor(tensors, name, torch.uint8, 1)
    if not len(found) or int(found.max()) > 1:
        raise NACError(f"the tensor '{name}' must be ones and zeros.")
    return found


def extract_checkpoint(
    path: files.PathLike,
    net: nn.Module,
    domains: Domains,
    made_with: Mapping[str, Any],
    *,
    layer: str = AUTO,
    layout: Optional[str] = None,
) -> CheckpointReadings:
    """Read all domains once and write the file, whole or not at all.

    Args:
        path: of the file.
        net: the network with the weights of the checkpoint.
        domains: what to read. Only training data needs gradients.
        made_with: noted in the file.
        layer: as in `coverage_integral`.
        layout: as in `IntegralConfig`.
    """
    reader = layer_reader(net, layer, layout)
    at = ""
    with TensorWriter(path) as spool:
        for (role, name), samples in domains.samples.items():
            title = f"{role} {name}"
            if role != "train":
                for flags in _predictions(net, samples, title):
                    spool.add({f"{role}/{name}": flags})
                continue
            passes = labeled_passes(reader, samples.loader(), title, samples.progress)
            for at, read, label in passes:
                right = read.logits.argmax(dim=1).cpu() == label.cpu()
                product = state_argument(at, read[at])[right.to(read.logits.device)]
                _refuse_broken(at, product, title)
                spool.add({_STATES: product, f"{role}/{name}": right.to(torch.uint8)})
        listed = {role: list(names) for role, names in domains.sizes().items()}
        about = {"layer": at, "domains": listed, "made_with": dict(made_with)}
        spool.finish(_KIND, _VERSION, about)
    return CheckpointReadings.load(path)


def _predictions(net: nn.Module, samples: Samples, title: str) -> Iterator[Tensor]:
    """Which predictions are right, uint8 `[batch]`."""
    with kept_random_state():
        for batch in batches(bar(samples.loader(), title, samples.progress)):
            predicted = classify(net, batch.data).argmax(dim=1).cpu()
            yield (predicted == batch.labels()).to(torch.uint8)


def _refuse_broken(layer: str, product: Tensor, title: str) -> None:
    broken = int(not_finite(Reading(product)).sum())
    if broken:
        raise NACError(
            f"{title}, layer '{layer}': {broken} samples have NaN or Inf readings. Check the "
            "inputs (normalization, corrupt images) and whether the training has diverged."
        )
