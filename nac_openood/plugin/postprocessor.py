"""NACPostprocessor: NAC as OpenOOD calls it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from nac_openood.core.rule import Rule
from nac_openood.core.rules import rule_named
from nac_openood.detector.config import NACConfig, checked_switch
from nac_openood.detector.detector import NACDetector
from nac_openood.detector.presets import preset_for
from nac_openood.errors import NACError, NotFittedError
from nac_openood.network.fingerprint import difference, fingerprint
from nac_openood.plugin.settings import plain, written, written_in
from nac_openood.plugin.source import import_failure
from nac_openood.plugin.sweep import SweepCache, sweep_arguments
from nac_openood.search import SURROGATE_LABEL, SearchResult
from nac_openood.search.advice import Advice
from nac_openood.search.recipe import advise_after_search, gather, search_settings

try:
    from openood.postprocessors.base_postprocessor import BasePostprocessor

    from nac_openood.plugin.loaders import unaugmented
except ImportError as error:
    raise ImportError(f"NACPostprocessor needs OpenOOD. {import_failure(error)}") from error

Inferred = Tuple[np.ndarray, np.ndarray, np.ndarray]

#: Training samples held out for the guard: a quarter of the usual fitting set, because the time of
#: OpenOOD's set-up counts.
_HELD_OUT = 250


class NACPostprocessor(BasePostprocessor):
    """Neuron Activation Coverage as an OpenOOD postprocessor.

    `setup` passes the network once over the fitting subset and, if it searches, over both
    validation sets and some held-out training samples; the search itself needs no network. With
    `search_in: openood` in the config OpenOOD's own sweep runs instead, on the same readings.

    Attributes:
        APS_mode: whether hyperparameters are searched.
        hyperparam_search_done: whether they have been.
        setup_flag: whether `setup` was called; OpenOOD's scripts pickle objects that have it.
        args_dict: what OpenOOD's sweep walks: "layer.setting" -> values, in order.
        search_result: the ranking, where `setup` searched, with the overfitting guard.
        advice: how NAC compares with simpler methods on validation data, where `setup` searched.
        config_file: the YAML it was made from, read again when a pickle of it is set up.
    """

    _cache: Optional[SweepCache]
    _cached: Optional[NACDetector]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        document = plain(config)
        root = document.get("postprocessor") or {}
        self._written = written(document)
        self._name = str(root.get("name") or "nac")
        self._id_name: Optional[str] = (document.get("dataset") or {}).get("name")
        self.APS_mode = checked_switch("APS_mode", root.get("APS_mode") or False)
        self.hyperparam_search_done = self.setup_flag = False
        self.args_dict = sweep_arguments(self._written) if self._written else {}
        self.search_result: Optional[SearchResult] = None
        self.advice: Optional[Advice] = None
        self.config_file: Optional[str] = None
        self._source: Optional[NACConfig] = None  # what setup was asked for
        self._layers: dict[str, Any] = {}  # what is in use, perhaps after a search
        self._rule: Optional[Rule] = None
        self._network: dict[str, str] = {}
        self._forget()

    # -- OpenOOD's contract -----------------------------------------------------------------

    def setup(
        self, net: nn.Module, id_loader_dict: Mapping[str, Any], ood_loader_dict: Mapping[str, Any]
    ) -> None:
        """Fit on a class-balanced subset of the training data; search if the config asks for it."""
        settings = self._current(net)
        if self.setup_flag and self._still_fits(net, settings):
            return
        self._forget()
        self.setup_flag = False  # until the end: an interrupted set-up is none
        self._source, self._network = settings, fingerprint(net)
        self.args_dict = sweep_arguments(settings)
        self.search_result = self.advice = None
        # with nothing to sweep there is nothing to search, and OpenOOD must not try
        self.hyperparam_search_done = self.APS_mode and not self.args_dict
        reader = NACDetector(net, settings.layer_choice, rule=settings.rule, fast=settings.fast)
        train = unaugmented(_loader(id_loader_dict, "train"))
        if self.APS_mode and self.args_dict:
            inside = _loader(id_loader_dict, "val")
            outside = (ood_loader_dict or {}).get("val")
            self._prepare_search(reader, settings, train, inside, outside)
        else:
            reader.fit(train, settings.n_samples)
            if rule_named(settings.rule).needs_calibration:
                reader.calibrate(_loader(id_loader_dict, "val"))
            self._use(reader.layers, reader.rule_)
        self.setup_flag = True

    def _prepare_search(
        self, reader: NACDetector, settings: NACConfig, train: Any, inside: Any, outside: Any
    ) -> None:
        """Read everything once; then search here, or leave it to OpenOOD's sweep."""
        readings = gather(
            reader, train, inside, outside, n_samples=settings.n_samples, n_held_out=_HELD_OUT
        )
        if readings.surrogate:
            warnings.warn(f"there is no OOD validation data: {SURROGATE_LABEL}.", stacklevel=4)
        self._cache = SweepCache(settings.rule, readings.fit)
        self._cache.add(inside, readings.id_val)
        self._cache.add(outside, readings.ood_val)
        self._use(settings.layers)
        if settings.search_in == "openood":
            return
        found = self.search_result = search_settings(readings, settings, strategy="grid")
        rule = self._cache.fitted(found.layers)
        self._use(found.layers, rule)
        self._cache = None
        self.hyperparam_search_done = True
        if found.overfits:
            warnings.warn(
                f"NAC's settings overfit: they separate held-out training from validation samples "
                f"with an AUROC of {found.best.guard:.1%}, which should be near 50 %. Fewer bins "
                "or a larger full_count overfit less; see docs/search.md.",
                stacklevel=4,
            )
        self.advice = advise_after_search(rule, readings)
        for text in self.advice.warnings:
            warnings.warn(f"{text}. See docs/which_method.md.", stacklevel=4)

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
        detector = self._detector(net)
        if self.hyperparam_search_done:
            self._cache = None  # the sweep is over and OpenOOD has moved on to the test sets
        found = detector.score_loader(data_loader, progress=progress)
        return found.prediction, found.score, found.label

    def set_hyperparam(self, hyperparam: Sequence[Any]) -> None:
        """Use one value for each name of `args_dict`, in its order."""
        names = list(self.args_dict)
        if len(hyperparam) != len(names):
            raise NACError(f"expected {len(names)} values, for {names}; got {len(hyperparam)}.")
        if self._source is None or self._cache is None:
            raise NotFittedError("there are no readings yet: call setup first.")
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
    def layers(self) -> Mapping[str, Any]:
        """The settings in use, by layer."""
        return dict(self._layers)

    # -- inside -----------------------------------------------------------------------------

    def _use(self, layers: Mapping[str, Any], rule: Optional[Rule] = None) -> None:
        """Go on with these settings; without a rule it is fitted when it is first needed."""
        self._layers, self._rule, self._cached = dict(layers), rule, None

    def _fitted(self) -> Rule:
        if self._rule is None and self._cache is not None:
            self._rule = self._cache.fitted(self._layers)
        if self._rule is None:
            raise NotFittedError("this NACPostprocessor is not set up: call setup first.")
        return self._rule

    def _detector(self, net: nn.Module) -> NACDetector:
        rule = self._fitted()
        if self._cached is None or self._cached.net is not net:
            fast = self._source is not None and self._source.fast
            self._cached = NACDetector.from_rule(net, rule, fast=fast)
        return self._cached

    def _current(self, net: nn.Module) -> NACConfig:
        """The settings as they are written today."""
        own = self._written
        if self.config_file is not None and Path(self.config_file).is_file():
            own = written_in(self.config_file, self._name)
        return own or preset_for(net, str(self._id_name), self._name)

    def _still_fits(self, net: nn.Module, settings: NACConfig) -> bool:
        """Whether counts that came out of a pickle are still what config and network ask for."""
        changed = "its settings differ from the config" if settings != self._source else ""
        changed = changed or difference(self._network, net)
        if changed:
            warnings.warn(
                f"a fitted NACPostprocessor was loaded, but {changed}: it is fitted again. Delete "
                f"the outdated {self._name}.pkl in postprocessors/ (and in scores/, if any).",
                UserWarning,
                stacklevel=3,
            )
        return not changed

    # -- pickles: small, without the network ------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        if self._cache is not None:
            self._fitted()  # what the cache could make is lost with it
        state = {k: v for k, v in vars(self).items() if k not in ("_cache", "_cached")}
        state["config"] = plain(self.config)
        if self._rule is not None:
            rule = self._rule
            # on the CPU: the pickle may be read where no GPU is
            tensors = {name: tensor.cpu() for name, tensor in rule.tensors().items()}
            state["_rule"] = rule.name, rule.settings(), tensors
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self._rule, tuple):  # in early pickles it is the rule itself
            name, settings, tensors = self._rule
            self._rule = rule_named(name).restore(settings, tensors)
        self._forget()

    def _forget(self) -> None:
        """Drop everything that can be made again."""
        self._cache = None
        self._cached = None


def _loader(loaders: Mapping[str, Any], name: str) -> Any:
    if loaders is None or loaders.get(name) is None:
        have = sorted(loaders) if loaders else "nothing"
        raise NACError(
            f"NAC needs an ID '{name}' loader, got {have}. Pass OpenOOD's loader dicts; without "
            "validation data set APS_mode: False."
        )
    return loaders[name]
