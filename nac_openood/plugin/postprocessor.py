"""NACPostprocessor: NAC as an OpenOOD postprocessor."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Union

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from nac_openood.core.layer_config import refuse_unknown
from nac_openood.core.rule import Rule, rule_named
from nac_openood.detector.batches import loader_like
from nac_openood.detector.config import SECTIONS, NACConfig, checked_switch, parsed, preset_for
from nac_openood.detector.detector import NACDetector
from nac_openood.detector.readings import Readings, fit_rule
from nac_openood.errors import NACError, NotFittedError
from nac_openood.network.fingerprint import difference, fingerprint
from nac_openood.plugin.source import IMPORT_ERRORS, import_failure
from nac_openood.search import SURROGATE_LABEL, SearchResult
from nac_openood.search.advise import Advice
from nac_openood.search.recipe import ReadingSet, gather, set_up

try:
    from openood.postprocessors.base_postprocessor import BasePostprocessor
    from openood.preprocessors.base_preprocessor import BasePreprocessor
    from openood.preprocessors.test_preprocessor import TestStandardPreProcessor
except IMPORT_ERRORS as error:
    raise ImportError(f"NACPostprocessor needs OpenOOD. {import_failure(error)}") from error


#: Training samples held out for the guard: a quarter of the usual fitting set, to keep `setup`
#: short.
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
        args_dict: what OpenOOD's sweep iterates over: "layer.setting" -> values, in order.
        search_result: the ranking, if `setup` searched, with the overfitting guard.
        advice: how NAC compares with simpler methods on validation data, if `setup` searched.
        config_file: the YAML file it was made from, read again when a pickle is set up.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        document = _as_dict(config)
        root = document.get("postprocessor") or {}
        self._settings = settings_in(document)  # None if the config has none
        self._name = str(root.get("name") or "nac")
        self._id_name: Optional[str] = (document.get("dataset") or {}).get("name")
        self.APS_mode = checked_switch("APS_mode", root.get("APS_mode") or False)
        self.hyperparam_search_done = self.setup_flag = False
        self.args_dict = _sweep_lists(self._settings) if self._settings else {}
        self.search_result: Optional[SearchResult] = None
        self.advice: Optional[Advice] = None
        self.config_file: Optional[str] = None
        self._source: Optional[NACConfig] = None  # the settings of the last setup
        self._rule: Optional[Rule] = None  # fitted, with the settings in use
        self._network: dict[str, str] = {}
        # for OpenOOD's own sweep: all readings, and loaders of validation data with theirs
        self._cache: Optional[tuple[ReadingSet, Sequence[tuple[Any, Readings]]]] = None
        self._detector: Optional[NACDetector] = None

    # -- OpenOOD's contract -----------------------------------------------------------------

    def setup(
        self, net: nn.Module, id_loader_dict: Mapping[str, Any], ood_loader_dict: Mapping[str, Any]
    ) -> None:
        """Fit on a class-balanced subset of the training data; search if the config asks for it."""
        settings = self._settings
        if self.config_file is not None and Path(self.config_file).is_file():
            settings = settings_in(read_openood_config(self.config_file, self._name))
        settings = settings or preset_for(net, str(self._id_name), self._name)
        if self.setup_flag and self._is_current(net, settings):
            return
        self._cache, self.setup_flag = None, False  # until the end
        self._source, self._network = settings, fingerprint(net)
        self.args_dict = _sweep_lists(settings)
        self.search_result = self.advice = None
        # without a sweep there is nothing to search, and OpenOOD must not try
        self.hyperparam_search_done = self.APS_mode and not self.args_dict
        detector = NACDetector(net, settings.layer_choice, rule=settings.rule, fast=settings.fast)
        train = _unaugmented(_loader(id_loader_dict, "train"))
        if self.APS_mode and self.args_dict:
            id_val, ood_val = _loader(id_loader_dict, "val"), (ood_loader_dict or {}).get("val")
            if ood_val is None:
                warnings.warn(f"there is no OOD validation data: {SURROGATE_LABEL}.", stacklevel=3)
            if settings.search_in == "openood":
                self._read(detector, settings, train, id_val, ood_val)
            else:
                self._search(net, settings, train, id_val, ood_val)
        else:
            detector.fit(train, settings.n_samples)
            if rule_named(settings.rule).needs_calibration:
                detector.calibrate(_loader(id_loader_dict, "val"))
            self._rule = detector._fitted()
        self._detector = None
        self.detector(net)
        self.setup_flag = True

    def _read(self, reader: NACDetector, settings: NACConfig, *loaders: Any) -> None:
        """Read everything once, and leave the search to OpenOOD's sweep."""
        readings = gather(reader, *loaders, n_samples=settings.n_samples, n_held_out=0)
        self._cache = readings, list(zip(loaders[1:], (readings.id_val, readings.ood_val)))
        for _, validation in self._cache[1]:
            validation.check_finite("validation")
        self.set_hyperparam(())  # the settings of the config

    def _search(self, net: nn.Module, settings: NACConfig, *loaders: Any) -> None:
        """Read everything once, search, and fit with the best settings."""
        settings = replace(settings, search=True)
        detector, found, self.advice = set_up(net, settings, *loaders, n_held_out=_HELD_OUT)
        assert found is not None and self.advice is not None
        self._rule = detector._fitted()
        self.search_result, self.hyperparam_search_done = found, True
        if found.overfits:
            warnings.warn(
                f"NAC's settings overfit: they separate held-out training from validation samples "
                f"with an AUROC of {found.best.guard:.1%}, which should be near 50 %. Fewer bins "
                "or a larger full_count overfit less; see docs/search.md.",
                stacklevel=4,
            )
        for text in self.advice.warnings:
            warnings.warn(f"{text}. See docs/which_method.md.", stacklevel=4)

    def postprocess(self, net: nn.Module, data: Any) -> tuple[Tensor, Tensor]:
        """Prediction and confidence of a batch, both `[batch]`."""
        found = self.detector(net).score_loader([data], progress=False)
        return torch.from_numpy(found.prediction), torch.from_numpy(found.score)

    def inference(
        self, net: nn.Module, data_loader: Any, progress: bool = True
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Predictions, confidences and labels of a dataset."""
        for loader, readings in self._cache[1] if self._cache else ():
            if loader is data_loader:  # it may shuffle, so the labels come from the readings
                score = self._fitted().score(readings)
                return readings.prediction.numpy(), score.numpy(), readings.label.numpy()
        detector = self.detector(net)
        if self.hyperparam_search_done:
            self._cache = None  # the sweep is over and OpenOOD has moved on to the test sets
        found = detector.score_loader(data_loader, progress=progress)
        return found.prediction, found.score, found.label

    def set_hyperparam(self, hyperparam: Sequence[Any]) -> None:
        """Fit with one value for each name of `args_dict`, in its order."""
        if self._source is None or self._cache is None:
            raise NotFittedError("there are no readings yet: call setup first.")
        layers = dict(self._source.layers)
        for name, value in zip(self.args_dict, hyperparam):
            layer, _, setting = name.rpartition(".")
            layers[layer] = replace(layers[layer], **{setting: value})
        rule = rule_named(self._source.rule)(layers)
        self._rule, self._detector = fit_rule(rule, self._cache[0].fit.batches()), None

    def get_hyperparam(self) -> list[Any]:
        """The values in use, in the order of `args_dict`; None for a layer that is left out."""
        layers, split = self.layers, [name.rpartition(".") for name in self.args_dict]
        return [getattr(layers.get(layer), setting, None) for layer, _, setting in split]

    @property
    def layers(self) -> Mapping[str, Any]:
        """The settings in use, by layer; empty before `setup`."""
        return {} if self._rule is None else dict(self._rule.layers)

    def detector(self, net: nn.Module) -> NACDetector:
        """The fitted detector of the network.

        For p-values and decisions, which OpenOOD has none of, calibrate it on held-out ID data:
        `postprocessor.detector(net).calibrate(id_loader_dict["val"])`, or on other data if a search
        (`APS_mode`) has used these: settings chosen on them would make p-values too small.
        """
        if self._detector is None or self._detector.net is not net:
            fast = self._source is not None and self._source.fast
            self._detector = NACDetector.from_rule(net, self._fitted(), fast=fast)
        return self._detector

    # -- internals --------------------------------------------------------------------------

    def _fitted(self) -> Rule:
        if self._rule is None:
            raise NotFittedError("this NACPostprocessor is not set up: call setup first.")
        return self._rule

    def _is_current(self, net: nn.Module, settings: NACConfig) -> bool:
        """Whether the counts of a pickle still match the config and the network."""
        changed = "its settings differ from the config" if settings != self._source else ""
        changed = changed or difference(self._network, net)
        if changed:
            warnings.warn(
                f"a fitted NACPostprocessor was loaded, but {changed}: it is fitted again. Delete "
                f"the outdated {self._name}.pkl in postprocessors/ (and in scores/, if any).",
                stacklevel=3,
            )
        return not changed

    # -- pickles: small, without the network ------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "config": _as_dict(self.config), "_cache": None, "_detector": None}
        if self._rule is not None:
            # on the CPU: the pickle may be loaded without a GPU
            tensors = {name: tensor.cpu() for name, tensor in self._rule.tensors().items()}
            state["_rule"] = self._rule.name, self._rule.settings(), tensors
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"_cache": None, "_detector": None, **state})
        if "_written" in state:  # its name in pickles of version 0.1
            self._settings = self.__dict__.pop("_written")
        if isinstance(self._rule, tuple):  # in early pickles it is the rule itself
            name, settings, tensors = self._rule
            self._rule = rule_named(name).restore(settings, tensors)


# ---- OpenOOD's configs


def _as_dict(config: Any) -> Any:
    """OpenOOD's `Config` (which returns None for missing keys) as dicts and lists."""
    if isinstance(config, Mapping):
        return {key: _as_dict(value) for key, value in config.items()}
    return [_as_dict(value) for value in config] if isinstance(config, (list, tuple)) else config


def settings_in(document: Mapping[str, Any]) -> Optional[NACConfig]:
    """The settings in an OpenOOD config; None if it has only the rule's name and `APS_mode`.

    Raises:
        NACError: they are wrong, or there are none for layers.
    """
    root = document.get("postprocessor") or {}
    if not isinstance(root, Mapping) or any(
        value not in (None, {}) for key, value in root.items() if key not in ("name", "APS_mode")
    ):
        return NACConfig.from_dict({"postprocessor": root})
    rule_named(str(root.get("name") or "nac"))  # raises if there is no such rule
    return None


def read_openood_config(path: Union[str, Path], rule: str) -> Mapping[str, Any]:
    """Read an OpenOOD config of a rule from a YAML file, and check its settings.

    Raises:
        NACError: they cannot be read, or are wrong; the message names the file.
    """

    def checked(document: Mapping[str, Any]) -> Mapping[str, Any]:
        refuse_unknown(document, SECTIONS)
        settings_in(document)
        root = document.get("postprocessor")
        if not root or root.get("name", "nac") != rule:
            raise NACError(f"expected 'name: {rule}' under 'postprocessor:', got {root!r}.")
        checked_switch("APS_mode", root.get("APS_mode") or False)
        return document

    return parsed(path, checked)


def _sweep_lists(settings: NACConfig) -> dict[str, list[Any]]:
    """OpenOOD's `args_dict`: "layer.setting" -> values.

    In the order of the layers, which is the order our own search breaks ties in.
    """
    return {
        f"{layer}.{setting}": list(values)
        for layer in settings.layers
        for setting, values in settings.sweep.get(layer, {}).items()
    }


# ---- OpenOOD's loaders


def _loader(loaders: Mapping[str, Any], name: str) -> Any:
    if loaders is None or loaders.get(name) is None:
        have = sorted(loaders) if loaders else "nothing"
        raise NACError(
            f"NAC needs an ID '{name}' loader, got {have}. Pass OpenOOD's loader dicts; without "
            "validation data set APS_mode: False."
        )
    return loaders[name]


def _unaugmented(loader: Any) -> Any:
    """The loader without augmentation, which the training loader of `main.py` has."""
    augments = getattr(getattr(loader, "dataset", None), "preprocessor", None)
    if not isinstance(augments, BasePreprocessor) or isinstance(augments, TestStandardPreProcessor):
        return loader
    unaugmented = loader_like(loader)
    unaugmented.collate_fn = _collate_test_images
    return unaugmented


def _collate_test_images(items: Sequence[Mapping[str, Any]]) -> Any:
    """A batch of `data_aux`, which OpenOOD keeps under the test transform."""
    return default_collate([{"data": item["data_aux"], "label": item["label"]} for item in items])
