"""LayerReader: passes over a network that read what a rule needs, and nothing else."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, TypeVar

import torch
from torch import Tensor, nn

from nac_openood.core.reading import Probed
from nac_openood.core.rule import Rule
from nac_openood.core.rules import rule_named
from nac_openood.detector.batches import Batch
from nac_openood.detector.choose import (
    LayerChoice,
    automatic_settings,
    layer_settings,
    locate_layers,
)
from nac_openood.detector.config import checked_switch
from nac_openood.detector.dealing import dealt
from nac_openood.detector.fitting_set import FittingSet
from nac_openood.detector.readings import Readings
from nac_openood.detector.subset import AUTHORS_SEED
from nac_openood.detector.transfers import ahead, behind
from nac_openood.distributed import map_shared
from nac_openood.errors import NotFittedError
from nac_openood.files import PathLike
from nac_openood.network.architectures import Layer
from nac_openood.network.auto import with_layouts
from nac_openood.network.fingerprint import identity
from nac_openood.network.inputs import autocast_to, checked_autocast
from nac_openood.network.plan import PassPlan
from nac_openood.network.probe import read
from nac_openood.network.random_state import kept_random_state
from nac_openood.network.replica import unwrap

_T = TypeVar("_T")


class LayerReader:
    """Reads the layers of a network for a rule. Its arguments are those of `NACDetector`."""

    def __init__(
        self,
        net: nn.Module,
        layers: LayerChoice,
        *,
        rule: str = "nac",
        fast: bool = False,
        autocast: Optional[torch.dtype] = None,
    ) -> None:
        unwrap(net)  # refuses what is no network
        self.net, self.rule, self.fast = net, rule, checked_switch("fast", fast)
        self.autocast = checked_autocast(autocast)
        self.layers: dict[str, Any] = {}
        self._places: dict[str, Layer] = {}
        self._layouts_known = False
        self._plan: Optional[PassPlan] = None
        self._sample: Optional[Tensor] = None
        settings = layer_settings(net, layers, rule_named(rule))  # wrong names are refused at once
        if settings:  # automatic layers wait for the first batch
            self._settle(settings)

    def read_loader(
        self,
        loader: Iterable[Any],
        n_samples: Optional[int] = None,
        *,
        save_to: Optional[PathLike] = None,
        in_distribution: bool = False,
        progress: Optional[bool] = None,
    ) -> Readings:
        """Read a whole dataset once, to fit, score or search without the network afterwards.

        Args:
            loader: as in `NACDetector.fit`.
            n_samples: read the subset that `fit` would be fitted on; None reads everything.
            save_to: a file that the readings are written to batch by batch; what is returned is
                mapped from it, so that they need not fit in memory.
            in_distribution: whether labels must be classes of the network, as `fit` checks them.
            progress: whether to show a progress bar; None shows one on a terminal.
        """
        samples: Iterable[Batch]
        if in_distribution or n_samples is not None:
            samples = FittingSet(
                self.net, loader, n_samples, seed=AUTHORS_SEED, title="NAC read", progress=progress
            )
        else:
            samples = dealt(loader, "NAC read", progress)
        network = identity(self.net)

        def work(batch: Batch) -> Readings:
            return Readings.of_pass(self._probe(batch.data), batch.labels(), network)

        with kept_random_state():
            parts = behind(self._pass("read", samples, work))
            if save_to is not None:
                return Readings.save_parts(save_to, parts)
            return Readings.concatenate(list(parts))

    def _pass(
        self, step: str, samples: Iterable[Batch], work: Callable[[Batch], _T]
    ) -> Iterator[_T]:
        """The results of `work` for all batches in order, whichever process they are made in."""

        def own() -> Iterator[Batch]:
            for batch in samples:
                self.prepare(batch.data)
                if batch.mine:
                    yield batch

        return map_shared(step, ahead(own(), self.net), work)

    @property
    def places(self) -> Mapping[str, Layer]:
        """Where in the network each layer is; empty before automatic layers are found."""
        return dict(self._places)

    def _settle(self, settings: Mapping[str, Any]) -> None:
        """From now on, these are the layers."""
        self._places = locate_layers(self.net, settings)
        self._layouts_known = all(layer.layout for layer in self._places.values())
        self._needs = rule_named(self.rule)(settings).needs
        self.layers = dict(settings)  # last: other threads take it as the sign that all is there

    def _unfitted(self) -> Rule:
        """A new rule."""
        if not self.layers:
            raise NotFittedError(
                "`layers='auto'` finds layers by running the network: call fit or read_loader "
                "first, or name the layers."
            )
        return rule_named(self.rule)(self.layers)

    def _probe(self, x: Any) -> Probed:
        """One pass over the network."""
        self.prepare(x)
        assert self._plan is not None
        needs = self._needs
        with autocast_to(self.net, self.autocast):
            return read(
                self.net, x, self._places, self._plan, gradients=needs.gradients, mean=needs.mean
            )

    def prepare(self, x: Any) -> None:
        """Find out how to pass over the network, by the first batch; later ones change nothing.

        Scoring and fitting do this by themselves. Several processes that are to agree to the bit
        must begin with the same batch.
        """
        if self._plan is None:
            self._plan = PassPlan(self.net, x, fast=self.fast)
            self._sample = x[:1].clone() if isinstance(x, Tensor) else None
        if not self.layers:
            self._settle(automatic_settings(self.net, x, rule_named(self.rule)))
        if not self._layouts_known:
            found = with_layouts(self.net, x, self._places)
            if found is not None:
                self._places, self._layouts_known = found, True
