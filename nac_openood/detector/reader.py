"""Passes over a network that read what a rule needs, and nothing else."""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Type, TypeVar

import torch
from torch import Tensor, nn

from nac_openood.core.reading import Probed
from nac_openood.core.rule import Rule
from nac_openood.detector.batches import Batch
from nac_openood.detector.presets import locate_layers
from nac_openood.detector.readings import Readings
from nac_openood.distributed import map_shared
from nac_openood.network.architectures import Layer
from nac_openood.network.auto import with_layouts
from nac_openood.network.inputs import autocast_to, device_of, mapped
from nac_openood.network.plan import PassPlan
from nac_openood.network.probe import read

_T = TypeVar("_T")


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
        sample: the first sample of the first batch, if that was a tensor.
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
        self.sample: Optional[Tensor] = None
        self._find = find
        self._plan: Optional[PassPlan] = None
        if layers:
            self._set_layers(layers)

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
            self.sample = x[:1].clone() if isinstance(x, Tensor) else None
        if not self.layers:
            self._set_layers(self._find(x))
        if not self._has_layouts:
            found = with_layouts(self.net, x, self.locations)
            if found is not None:
                self.locations, self._has_layouts = dict(found), True

    def read(self, x: Any) -> Probed:
        """One pass over the network."""
        self.prepare(x)
        needs = self._needs
        with autocast_to(self.net, self.autocast):
            return read(
                self.net, x, self.locations, self._plan, gradients=needs.gradients, mean=needs.mean
            )

    def map(
        self, step: str, batches: Iterable[Batch], work: Callable[[Probed, Batch], _T]
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
    """Move readings to the CPU, waiting for those of a GPU only while it has its next batch."""
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
    return copy.clone()  # pinned memory is scarce
