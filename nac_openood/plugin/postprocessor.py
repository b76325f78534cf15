"""NACPostprocessor: NAC as OpenOOD calls it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from openood.postprocessors.base_postprocessor import BasePostprocessor
from torch import Tensor, nn

from nac_openood.config import LayerConfig, NACConfig, read_config
from nac_openood.core.coverage import Coverage
from nac_openood.core.fingerprint import difference, fingerprint
from nac_openood.core.readings import Readings
from nac_openood.data import fitting_loader
from nac_openood.detector import NACDetector
from nac_openood.errors import NACError, NotFittedError
from nac_openood.plugin.loaders import unaugmented
from nac_openood.plugin.settings import plain, shipped, written
from nac_openood.plugin.sweep import SweepCache, sweep_arguments
from nac_openood.search import SearchResult, search

Inferred = Tuple[np.ndarray, np.ndarray, np.ndarray]


class NACPostprocessor(BasePostprocessor):
    """Neuron Activation Coverage as an OpenOOD postprocessor.

    `setup` passes the network once over the fitting subset and, where a search is due, over both
    validation sets; the search itself needs no network. With `search_in: openood` in the config
    OpenOOD's own Cartesian sweep runs instead, on the same readings.

    Attributes:
        APS_mode: whether hyperparameters are searched.
        hyperparam_search_done: whether they have been.
        args_dict: what OpenOOD's sweep walks: "layer.setting" -> values, in order.
        search_result: the ranking, where `setup` searched.
        config_file: the YAML it was made from, asked again when a pickle of it is set up.
    """

    _cache: Optional[SweepCache]
    _cached: Optional[NACDetector]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        document = plain(config)
        self._written = written(config)
        self._id_name: Optional[str] = (document.get("dataset") or {}).get("name")
        self.APS_mode = bool((document.get("postprocessor") or {}).get("APS_mode"))
        self.hyperparam_search_done = False
        self.args_dict = sweep_arguments(self._written) if self._written else {}
        self.search_result: Optional[SearchResult] = None
        self.config_file: Optional[str] = None
        self._source: Optional[NACConfig] = None  # what setup was asked for
        self._layers: dict[str, LayerConfig] = {}  # what is in use, perhaps after a search
        self._coverage: Optional[Coverage] = None
        self._network: dict[str, str] = {}
        self._forget()

    # -- OpenOOD's contract -----------------------------------------------------------------

    def setup(
        self, net: nn.Module, id_loader_dict: Mapping[str, Any], ood_loader_dict: Mapping[str, Any]
    ) -> None:
        """Fit on a class-balanced subset of the training data; search where that is due."""
        settings = self._current(net)
        if self._coverage is not None and self._still_fits(net, settings):
            return
        self._forget()
        self._source, self._network = settings, fingerprint(net)
        self.args_dict, self.search_result = sweep_arguments(settings), None
        # with nothing to sweep there is nothing to search, and OpenOOD must not try
        self.hyperparam_search_done = self.APS_mode and not self.args_dict
        reader = NACDetector(net, settings.layers, fast=settings.fast)
        source = unaugmented(_loader(id_loader_dict, "train"))
        if not (self.APS_mode and self.args_dict):
            coverage = reader.fit(source, settings.n_samples).coverage_
            self._use(settings.layers, coverage)
            return
        _refuse_too_much(source, settings.n_samples)
        fit = reader.read_loader(fitting_loader(source, settings.n_samples))
        inside, outside = (_loader(d, "val") for d in (id_loader_dict, ood_loader_dict))
        cache = self._cache = SweepCache(fit)
        for loader in (inside, outside):
            cache.add(loader, reader.read_loader(loader))
        self._use(settings.layers)
        if settings.search_in == "setup":
            self._search(settings, fit, cache.readings(inside), cache.readings(outside))

    def postprocess(self, net: nn.Module, data: Any) -> tuple[Tensor, Tensor]:
        """Prediction and confidence of a batch, both `[batch]`."""
        found = self._detector(net).score_loader([data], progress=False)
        return torch.from_numpy(found.prediction), torch.from_numpy(found.score)

    def inference(self, net: nn.Module, data_loader: Any, progress: bool = True) -> Inferred:
        """Predictions, confidences and labels of a data set."""
        cache = self._cache
        if cache is not None and data_loader in cache:
            readings = cache.readings(data_loader)
            score = cache.score(data_loader, self._layers).numpy()
            return readings.prediction.numpy(), score, readings.label.numpy()
        if self.hyperparam_search_done:
            self._cache = None  # the sweep is over and OpenOOD has moved on to the test sets
        found = self._detector(net).score_loader(data_loader, progress=progress)
        return found.prediction, found.score, found.label

    def set_hyperparam(self, hyperparam: Sequence[Any]) -> None:
        """Use one value for each name of `args_dict`, in its order."""
        names = list(self.args_dict)
        if len(hyperparam) != len(names):
            raise NACError(f"expected {len(names)} values, for {names}; got {len(hyperparam)}.")
        if self._source is None or self._cache is None:
            raise NotFittedError("there are no readings to recount: call setup first.")
        layers = dict(self._source.layers)
        for name, value in zip(names, hyperparam):
            layer, _, setting = name.rpartition(".")
            layers[layer] = replace(layers[layer], **{setting: value})
        self._use(layers)

    def get_hyperparam(self) -> list[Any]:
        """The values in use, in the order of `args_dict`; None for a layer that is left out."""
        split = [name.rpartition(".") for name in self.args_dict]
        return [
            getattr(self._layers[layer], setting) if layer in self._layers else None
            for layer, _, setting in split
        ]

    @property
    def layers(self) -> Mapping[str, LayerConfig]:
        """The settings in use, by layer."""
        return dict(self._layers)

    # -- inside -----------------------------------------------------------------------------

    def _search(self, settings: NACConfig, fit: Readings, inside: Readings, ood: Readings) -> None:
        self.search_result = search(
            fit, inside, ood, layers=settings.layers, sweep=settings.sweep, strategy="grid"
        )
        self._use(self.search_result.layers)
        self._cache = None
        self.hyperparam_search_done = True

    def _use(self, layers: Mapping[str, LayerConfig], coverage: Optional[Coverage] = None) -> None:
        self._layers = dict(layers)
        self._coverage = self._cache.coverage(layers) if self._cache else coverage
        self._cached = None

    def _detector(self, net: nn.Module) -> NACDetector:
        if self._coverage is None or self._source is None:
            raise NotFittedError("this NACPostprocessor is not set up: call setup first.")
        if self._cached is None or self._cached.net is not net:
            fast = self._source.fast
            self._cached = NACDetector.from_coverage(net, self._coverage, fast=fast)
        return self._cached

    def _current(self, net: nn.Module) -> NACConfig:
        """The settings as they are written today."""
        if self.config_file is not None and Path(self.config_file).is_file():
            return read_config(self.config_file)
        return self._written or shipped(self._id_name, net)

    def _still_fits(self, net: nn.Module, settings: NACConfig) -> bool:
        """Whether counts that came out of a pickle are still what config and network ask for."""
        changed = "its settings are not the config's" if settings != self._source else ""
        changed = changed or difference(self._network, net)
        if changed:
            warnings.warn(
                f"a fitted NACPostprocessor was loaded, but {changed}: it is fitted again. Delete "
                "the stale postprocessors/nac.pkl (and scores/nac.pkl, if any).",
                UserWarning,
                stacklevel=3,
            )
        return not changed

    # -- pickles: small, without the network ------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        state = {k: v for k, v in vars(self).items() if k not in ("_cache", "_cached")}
        state["config"] = plain(self.config)
        if self._coverage is not None:
            self._coverage.to(torch.device("cpu"))  # the pickle may be read where no GPU is
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _forget(self) -> None:
        """Drop everything that can be made again."""
        self._cache = None
        self._cached = None


def _loader(loaders: Mapping[str, Any], name: str) -> Any:
    if loaders is None or loaders.get(name) is None:
        have = sorted(loaders) if loaders else "nothing"
        raise NACError(
            f"NAC needs a '{name}' loader, got {have}. Pass OpenOOD's loader dicts; without "
            "validation data set APS_mode: False."
        )
    return loaders[name]


def _refuse_too_much(loader: Any, n_samples: Optional[int]) -> None:
    """A search keeps the readings of the fitting set in memory; all of ImageNet would not fit."""
    n = len(loader.dataset) if n_samples is None else n_samples
    if n > 200_000:
        raise NACError(
            f"a search over a fitting set of {n} samples would need too much memory. Set "
            "n_samples (the paper uses 1000, and 50000 for ViT) or APS_mode: False."
        )
