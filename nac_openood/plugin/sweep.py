"""OpenOOD's own hyperparameter sweep on readings: no network, and no layer scored twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping, Tuple

from torch import Tensor

from nac_openood.core.rule import Rule
from nac_openood.core.rules import rule_named
from nac_openood.detector.config import NACConfig
from nac_openood.detector.readings import Readings, fit_rule

_Layer = Tuple[str, Any]


def sweep_arguments(settings: NACConfig) -> dict[str, list[Any]]:
    """OpenOOD's `args_dict`: "layer.setting" -> values.

    In the order of the layers, which is the order our own search breaks ties in.
    """
    return {
        f"{layer}.{setting}": list(values)
        for layer in settings.layers
        for setting, values in settings.sweep.get(layer, {}).items()
    }


class SweepCache:
    """Readings of the fitting set and of validation loaders, and the layer scores made of them.

    Predictions and labels lie beside the readings, so a shuffled loader does no harm: it is read
    once, and every point of the sweep sees the same samples in the same order.

    Args:
        rule: the name of the rule.
        fit: readings of the fitting set.
    """

    def __init__(self, rule: str, fit: Readings) -> None:
        self._rule, self._fit = rule_named(rule), fit
        self._fitted: dict[_Layer, Rule] = {}
        # the loaders are kept: while they live, nothing else can have their identity
        self._validation: dict[int, tuple[Any, Readings]] = {}
        self._scores: dict[tuple[int, _Layer], Tensor] = {}

    def add(self, loader: Any, readings: Readings) -> None:
        """Keep the readings of a validation loader."""
        readings.check_finite("validation")
        self._validation[id(loader)] = (loader, readings)

    def __contains__(self, loader: Any) -> bool:
        return id(loader) in self._validation

    def readings(self, loader: Any) -> Readings:
        """The readings of a loader that was added."""
        return self._validation[id(loader)][1]

    def fitted(self, layers: Mapping[str, Any]) -> Rule:
        """The rule with these settings, fitted on the fitting set."""
        return fit_rule(self._rule(layers), self._fit.batches())

    def score(self, loader: Any, layers: Mapping[str, Any]) -> Tensor:
        """Scores `[samples]` of a loader that was added."""
        parts = {name: self._layer_score(loader, name, layers[name]) for name in layers}
        return self._rule(layers).combine(parts)

    def _layer_score(self, loader: Any, name: str, config: Any) -> Tensor:
        layer = (name, replace(config, weight=1.0))  # the weight enters when layers are combined
        if layer not in self._fitted:
            self._fitted[layer] = self.fitted(dict([layer]))
        key = (id(loader), layer)
        if key not in self._scores:
            self._scores[key] = self._fitted[layer].parts(self.readings(loader))[name]
        return self._scores[key]
