"""Passes over a network that read what a rule needs, and the readings of a whole dataset."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Type, TypeVar

import torch
from torch import Tensor, nn

from nac_openood import tensor_files
from nac_openood.core.reading import BatchReadings, ByLayer, Reading, broken_error, not_finite
from nac_openood.core.rule import Rule
from nac_openood.detector.batches import Batch, check_labels
from nac_openood.detector.config import locate_layers
from nac_openood.distributed import map_shared
from nac_openood.errors import NACError
from nac_openood.files import PathLike
from nac_openood.network.architectures import Layer
from nac_openood.network.checks import check_outputs, doubtful_logits, unstable
from nac_openood.network.fingerprint import identity
from nac_openood.network.inputs import as_inputs, autocast_to, device_of, mapped, rows
from nac_openood.network.probe import PassPlan, read, with_layouts

_T = TypeVar("_T")

#: Version 2 carries logits, and layers may lack gradients.
_KIND, _VERSION = "nac_openood readings", 2


@dataclass(frozen=True)
class Readings(ByLayer):
    """A mapping of layer name to `Reading` `[samples, neurons]`, with the network's predictions.

    Args:
        by_layer: readings by layer name.
        prediction: int64 `[samples]`, the predicted class.
        label: int64 `[samples]`, -1 where unknown.
        logits: `[samples, classes]`; None in files of version 1.
        network: identifies the network that was read; empty if it is unknown.
    """

    by_layer: Mapping[str, Reading]
    prediction: Tensor
    label: Tensor
    logits: Optional[Tensor] = None
    network: str = ""

    @classmethod
    def of_pass(cls, read: BatchReadings, label: Tensor, network: str = "") -> Readings:
        """The readings of a pass, on the device of the network; labels are not moved."""
        return cls(read.by_layer, read.logits.argmax(dim=1), label, read.logits, network)

    def __repr__(self) -> str:
        layers = (f"{name} ({r.activation.shape[1]})" for name, r in self.by_layer.items())
        return f"Readings of {self.n_samples:,} samples, by layer (neurons): {', '.join(layers)}"

    @property
    def n_samples(self) -> int:
        """How many samples were read."""
        return self.prediction.shape[0]

    @property
    def accuracy(self) -> Optional[float]:
        """The share of samples whose predicted class is their label; None without any label."""
        if bool((self.label == -1).all()):
            return None
        return float((self.prediction == self.label).double().mean())

    def batches(self, size: int = 1000) -> Iterator[Readings]:
        """The readings in slices of `size` samples, so that work on them stays small."""
        for start in range(0, self.n_samples, size):
            yield self._map(itemgetter(slice(start, start + size)))

    def rows(self, index: Any) -> Readings:
        """The readings of some samples: whole numbers or booleans, as in NumPy."""
        return self._map(itemgetter(torch.as_tensor(index)))

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Readings:
        """The readings on a device; `non_blocking` is as in `torch.Tensor.to`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def cpu(self) -> Readings:
        """The readings on the CPU."""
        return self.to(torch.device("cpu"))

    @classmethod
    def concatenate(cls, parts: list[Readings]) -> Readings:
        """Join readings of the same layers, in order."""
        if not parts:
            raise _no_readings()
        kept = [part._tensors() for part in parts]
        joined = {name: torch.cat([tensors[name] for tensors in kept]) for name in kept[0]}
        networks = {part.network for part in parts}
        return cls._from(joined, networks.pop() if len(networks) == 1 else "")

    # -- checks ----------------------------------------------------------------------------

    def check_finite(self, what: str, layers: Optional[Iterable[str]] = None) -> None:
        """Raise if there are NaN or Inf readings; `what` names the samples in the error."""
        for name in self if layers is None else layers:
            count = sum(int(not_finite(part[name]).sum()) for part in self.batches())
            if count:
                raise broken_error(count, f"{self.n_samples} {what} samples", name)

    def check_labels(self, what: str) -> None:
        """Raise if in-distribution samples have labels that are not classes of the network.

        Readings without any labels are fine; OOD samples among labeled ones are not.
        """
        if self.logits is not None and bool((self.label != -1).any()):
            check_labels(self.label, self.logits.shape[1], f"the {what} readings: ")

    def check_network(self, net: nn.Module) -> None:
        """Raise if these are readings of another network than `net`, as far as that is known."""
        if self.network and self.network != identity(net):
            raise NACError(
                "these readings are of another network, or of other weights. Read this network, or "
                "use the one that was read."
            )

    def differs_from(self, other: Readings) -> str:
        """Why two sets cannot be of the same network and layers; "" if they can."""
        if list(self) != list(other):
            return f"layers {list(self)}, not {list(other)}"
        for name, reading in self.items():
            width, other_width = reading.activation.shape[1], other[name].activation.shape[1]
            if width != other_width:
                return f"layer '{name}' has {width} neurons, not {other_width}"
        both = self.network and other.network
        return "other weights" if both and self.network != other.network else ""

    # -- files -----------------------------------------------------------------------------

    def save(self, path: PathLike) -> None:
        """Write a safetensors file that `load` maps into memory instead of reading it whole."""
        tensor_files.write_tensors(path, _KIND, _VERSION, self._tensors(), self._about())

    @classmethod
    def save_parts(cls, path: PathLike, parts: Iterable[Readings]) -> Readings:
        """Write readings as they come, one part in memory at a time, and map the file.

        The same as `Readings.concatenate(parts).save(path)`, for sets that do not fit in memory.
        """
        about: dict[str, Any] = {}
        with tensor_files.TensorWriter(path) as writer:
            for part in parts:
                about = part._about()
                writer.add(part._tensors())
            if not about:
                raise _no_readings()
            writer.finish(_KIND, _VERSION, about)
        return cls.load(path)

    @classmethod
    def load(cls, path: PathLike) -> Readings:
        """Map what `save` wrote: tensors are read from disk as they are used, never whole."""
        tensors, about = tensor_files.read_tensors(path, _KIND, _VERSION)
        order = {key: tensors[key] for key in (f"activation/{name}" for name in about["layers"])}
        return cls._from({**order, **tensors}, about.get("network", ""))  # early files lack it

    def _about(self) -> dict[str, Any]:
        return {"layers": list(self), "network": self.network}

    def _map(self, change: Callable[[Tensor], Tensor]) -> Readings:
        changed = {name: change(tensor) for name, tensor in self._tensors().items()}
        return self._from(changed, self.network)

    @classmethod
    def _from(cls, tensors: Mapping[str, Tensor], network: str = "") -> Readings:
        """The inverse of `_tensors`."""
        names = [key.partition("/")[2] for key in tensors if key.startswith("activation/")]
        by_layer = {
            name: Reading(tensors[f"activation/{name}"], tensors.get(f"gradient/{name}"))
            for name in names
        }
        answers = tensors["prediction"], tensors["label"], tensors.get("logits")
        return cls(by_layer, *answers, network)

    def _tensors(self) -> dict[str, Tensor]:
        """Everything by name; the order of the layers is kept."""
        tensors: dict[str, Optional[Tensor]] = {
            "prediction": self.prediction,
            "label": self.label,
            "logits": self.logits,
        }
        for name, reading in self.items():
            tensors[f"activation/{name}"] = reading.activation
            tensors[f"gradient/{name}"] = reading.gradient
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def fit_rule(rule: Rule, parts: Iterable[Mapping[str, Reading]]) -> Rule:
    """Fit a rule on readings, with their labels if they have any."""
    for part in parts:
        rule.update(part, getattr(part, "label", None))
    rule.check()
    return rule


def _no_readings() -> NACError:
    return NACError("there are no readings to join: the loader yielded no batch.")


# -- passes --------------------------------------------------------------------------------


class Reader:
    """Runs a network on batches and reads its layers.

    Args:
        net: the network.
        rule: the rule, which says what it needs.
        layers: settings by layer name; empty if layers must be found.
        find: finds layers and their settings by running the network on the first batch.
        fast: as in `NACDetector`.
        autocast: as in `NACDetector`.

    Attributes:
        layers: settings by layer name; empty before they are found.
        locations: where in the network each layer is.
        sample: three samples of the first batch, or fewer.
    """

    def __init__(
        self,
        net: nn.Module,
        rule: Type[Rule],
        layers: Mapping[str, Any],
        find: Callable[[Any], Mapping[str, Any]],
        *,
        fast: bool = False,
        autocast: Optional[torch.dtype] = None,
    ) -> None:
        self.net, self.rule, self.fast, self.autocast = net, rule, fast, autocast
        self.layers: dict[str, Any] = {}
        self.locations: dict[str, Layer] = {}
        self.sample: Any = None
        self._find = find
        self._plan: Optional[PassPlan] = None
        if layers:
            self._set_layers(layers)

    @property
    def structure(self) -> Optional[list[int]]:
        """The `identities` of the network in the last pass."""
        return None if self._plan is None else self._plan.replicas.last

    def _set_layers(self, layers: Mapping[str, Any]) -> None:
        self.locations = locate_layers(self.net, layers)
        self._has_layouts = all(layer.layout for layer in self.locations.values())
        self._needs = self.rule(layers).needs
        self.layers = dict(layers)  # last: other threads check this attribute

    def prepare(self, x: Any) -> None:
        """Find layers, layouts and the plan of a pass on the first batch.

        `read` does this by itself. Processes that must get exactly the same results must begin
        with the same batch.
        """
        if self._plan is None:
            self._plan = PassPlan(self.net, x, fast=self.fast)
            self.sample = mapped(rows(as_inputs(x), slice(3)), torch.clone)
        if not self.layers:
            self._set_layers(self._find(x))
        if not self._has_layouts:
            found = with_layouts(self.net, x, self.locations)
            if found is not None:
                self.locations, self._has_layouts = dict(found), True

    def read(self, x: Any) -> BatchReadings:
        """One pass over the network."""
        self.prepare(x)
        needs = self._needs
        with autocast_to(self.net, self.autocast):
            return read(
                self.net, x, self.locations, self._plan, gradients=needs.gradients, mean=needs.mean
            )

    def doubts(self, x: Any, logits: Tensor) -> list[str]:
        """Why the readings of a batch are doubtful, found by running a few samples again.

        Args:
            x: the batch.
            logits: what the network returned for it.
        """
        with autocast_to(self.net, self.autocast):
            check_outputs(self.net, x)
            draws = self._plan is not None and self._plan.draws
            found = {
                "outputs": doubtful_logits(logits),
                "readings of a sample": unstable(self.net, x, self.locations, draws=draws),
            }
        return [f"the {what} {why}" for what, why in found.items() if why]

    def map(
        self, step: str, batches: Iterable[Batch], work: Callable[[BatchReadings, Batch], _T]
    ) -> Iterator[_T]:
        """The results of `work` for all batches in order; each process works on its shard.

        Args:
            step: name of the step; the same in all processes.
            batches: from `load_batches`.
            work: called with the readings of a batch, and the batch.
        """

        def shard() -> Iterator[Batch]:
            for batch in batches:
                self.prepare(batch.data)
                if batch.in_shard:
                    yield batch

        on_gpu = device_of(self.net).type == "cuda"

        def run(batch: Batch) -> _T:
            # a copy from pinned memory to the GPU does not block the CPU
            data = mapped(batch.data, _pinned) if on_gpu else batch.data
            return work(self.read(data), batch)

        return map_shared(step, shard(), run)


def _pinned(tensor: Tensor) -> Tensor:
    return tensor.pin_memory() if tensor.device.type == "cpu" else tensor


def on_cpu(parts: Iterable[Readings]) -> Iterator[Readings]:
    """Move readings to the CPU; copies from a GPU overlap with the pass over the next batch."""
    copies: deque[tuple[Readings, Any]] = deque()
    for part in parts:
        event = _copied_event(part.prediction.device)
        copies.append((part.to(torch.device("cpu"), non_blocking=event is not None), event))
        if event is not None:
            event.record()
        if len(copies) > 1:
            yield _arrived(*copies.popleft())
    yield from (_arrived(*copy) for copy in copies)


def _copied_event(device: torch.device) -> Any:
    """An event for the end of a copy from a GPU to pinned memory; None for other devices."""
    return torch.cuda.Event() if device.type == "cuda" else None


def _arrived(copy: Readings, event: Any) -> Readings:
    if event is None:
        return copy
    event.synchronize()
    return copy._map(torch.clone)  # pinned memory is scarce
