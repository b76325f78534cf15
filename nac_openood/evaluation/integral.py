"""`nac_openood.coverage_integral`: NAC-ME of a network, a single number.

`CheckpointReadings` reads a network once and stores what rankings are computed from: `z * g` of the
correctly classified training samples, and which samples of all data are classified correctly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Mapping, Optional, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from nac_openood.core.histogram import CoverageIntegral, LinearHistogram
from nac_openood.core.layer_config import STATES, IntegralConfig, sigmoid
from nac_openood.core.reading import Reading, broken_error, not_finite
from nac_openood.detector.batches import batches, check_labels
from nac_openood.detector.config import AUTO
from nac_openood.detector.readings import Reader
from nac_openood.errors import FileError, NACError
from nac_openood.files import PathLike
from nac_openood.network.architectures import Layer, find_layer, recognize, table_layers
from nac_openood.network.auto import auto_layers
from nac_openood.network.probe import classify
from nac_openood.network.replica import kept_random_state
from nac_openood.sources.samples import Samples
from nac_openood.tensor_files import TensorWriter, read_tensors

_KIND, _VERSION = "nac_openood checkpoint readings", 1
_PRODUCT = "z*g"
_SLICE = 1000

#: By role ("train", "val", "test", "oracle") and name of the domain.
SamplesByRole = Mapping[tuple[str, str], Samples]


def coverage_integral(
    net: nn.Module,
    loader: Iterable[Any],
    layer: str = AUTO,
    config: Optional[IntegralConfig] = None,
    *,
    progress: Optional[bool] = None,
) -> float:
    """How much of their range the neurons of a network cover: G(X, theta) of the paper.

    In the paper, larger coverage on training data goes with better accuracy on unseen domains, so
    it ranks checkpoints of a network without any out-of-distribution data; see
    `nac_openood.rank_checkpoints`. Values of different layers, settings or training sets are not
    comparable.

    Examples:
        >>> nac_openood.coverage_integral(net, train_loader)
        0.0208
        >>> nac_openood.coverage_integral(
        ...     net, train_loader, layer="layer3", config=IntegralConfig(n_bins=1000, steepness=1)
        ... )

    Args:
        net: a network that returns logits `[batch, classes]`. It is never changed.
        loader: labeled batches of training data without augmentation, `(x, y)` or dicts
            `{'data', 'label'}`; of several source domains, all together.
        layer: an alias of a known architecture (`avgpool`, `layer4`, `block11`), any dotted module
            path, or "auto": `avgpool` in ResNets, `norm2` of the last block in ViTs, and the input
            of the head in other networks.
        config: the settings; None is M = 50, O* = 500, alpha = 0.1.
        progress: whether to show a progress bar; None shows one on a terminal.

    Returns:
        G, from 0 to (M - 1) / M; 0 where no sample is classified correctly.
    """
    return count_coverage(net, loader, layer, config, progress=progress).integral()


def count_coverage(
    net: nn.Module,
    loader: Iterable[Any],
    layer: str = AUTO,
    config: Optional[IntegralConfig] = None,
    *,
    progress: Optional[bool] = None,
) -> CoverageIntegral:
    """The counts behind `coverage_integral`, which can be merged with those of other shards.

    Counts add up exactly: `a.merge(b)` equals the counts of one pass over both shards.
    """
    config = config or IntegralConfig()
    reader = layer_reader(net, layer, config.layout)
    counted: Optional[CoverageIntegral] = None
    with kept_random_state():
        for batch in batches(loader, "NAC-ME", progress):
            if batch.label is None:
                raise NACError(
                    "NAC-ME: expected labels, because only correctly classified samples count, but "
                    "this loader yields none. Let it yield (x, y)."
                )
            read = reader.read(batch.data)
            check_labels(batch.label, read.logits.shape[1])
            counted = counted or CoverageIntegral(dict.fromkeys(reader.layers, config))
            counted.update(read, batch.label)
    if counted is None:
        raise NACError("NAC-ME: the loader yielded no batch, so there is nothing to read.")
    counted.check()
    return counted


def deepest_layer(net: nn.Module, x: Any, name: str = AUTO) -> Layer:
    """The layer that NAC-ME is computed at.

    Args:
        net: the network.
        x: a batch, to find the layer of an unknown architecture.
        name: an alias of the architecture table, a module path, or "auto" for the paper's choice:
            in ViTs, the norm after the attention of the last block (`norm2` of block 11); in
            ResNets and all other networks, the input of the head (`avgpool`, which the paper calls
            layer4).
    """
    if name != AUTO:
        return find_layer(net, name)
    found = recognize(net)
    if found is None:
        return auto_layers(net, x).head_input
    layers = table_layers(net)
    if found[0].family == "vit":
        layers = [layer for layer in layers if layer.layout == "tokens"]
    return layers[0]


def layer_reader(net: nn.Module, name: str = AUTO, layout: Optional[str] = None) -> Reader:
    """A reader of one layer of a network, with gradients; the network is never changed.

    Args:
        net: a network that returns logits `[batch, classes]`.
        name: as in `deepest_layer`.
        layout: how the layer's output is laid out; None goes by the architecture table or by its
            dimensions.
    """

    def find(x: Any) -> dict[str, IntegralConfig]:
        found = deepest_layer(net, x, name)
        return {found.path: IntegralConfig(layout=layout or found.layout)}

    return Reader(net, CoverageIntegral, {}, find)


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
        settings = {(c.steepness, c.n_bins) for c in configs}
        counted = {each: LinearHistogram.empty(neurons, each[1], device) for each in settings}
        for part in self.product.split(_SLICE):
            states = {steepness: sigmoid(steepness * part) for steepness, _ in settings}
            for (steepness, _), histogram in counted.items():
                histogram.update(states[steepness])
        return [counted[c.steepness, c.n_bins].integral(c.full_count) for c in configs]

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
        reader, layer = layer_reader(net, made_with["layer"], made_with["layout"]), ""
        domains: dict[str, list[str]] = {}
        with TensorWriter(path) as writer, kept_random_state():
            for (role, name), data in samples.items():
                domains.setdefault(role, []).append(name)
                title = f"{role} {name}"
                for batch in batches(data.loader(), title, data.progress):
                    read = reader.read(batch.data) if role == "train" else None
                    logits = classify(net, batch.data) if read is None else read.logits
                    right = logits.argmax(dim=1).cpu() == batch.labels()
                    rows = {f"{role}/{name}": right.to(torch.uint8)}
                    if read is not None:
                        layer = next(iter(reader.layers))
                        product = STATES["output*gradient"].squashed(*read[layer])
                        product = product[right.to(logits.device)]
                        broken = int(not_finite(Reading(product)).sum())
                        if broken:
                            raise broken_error(broken, f"{len(product)} samples of {title}", layer)
                        rows[_PRODUCT] = product
                    writer.add(rows)
            about = {"layer": layer, "domains": domains, "made_with": dict(made_with)}
            writer.finish(_KIND, _VERSION, about)
        return cls.load(path)

    @classmethod
    def load(cls, path: PathLike) -> CheckpointReadings:
        """Map a file that `extract` wrote."""
        tensors, about = read_tensors(path, _KIND, _VERSION)
        correct = {
            role: {name: tensors[f"{role}/{name}"] for name in names}
            for role, names in about["domains"].items()
        }
        return cls(about["layer"], tensors[_PRODUCT], correct, about["made_with"])

    @classmethod
    def load_if(cls, path: PathLike, made_with: Mapping[str, Any]) -> Optional[CheckpointReadings]:
        """Load what an earlier call wrote, if it was made with the same network and data."""
        try:
            found = cls.load(path)
        except FileError:
            return None
        return found if found.made_with == made_with else None
