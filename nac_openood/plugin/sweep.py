"""What OpenOOD's own sweep needs to be fast: no network, and no layer counted or scored twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping

from torch import Tensor

from nac_openood.config import LayerConfig, NACConfig
from nac_openood.core.coverage import Coverage, combine
from nac_openood.core.histogram import Histogram
from nac_openood.core.readings import Readings


def sweep_arguments(settings: NACConfig) -> dict[str, list[Any]]:
    """OpenOOD's `args_dict`: "layer.setting" -> values, in the order of the config."""
    return {
        f"{layer}.{setting}": list(values)
        for layer, lists in settings.sweep.items()
        for setting, values in lists.items()
    }


class SweepCache:
    """Readings of the fitting set and of validation loaders, and what was made of them.

    Predictions and labels lie beside the readings, so a shuffled loader does no harm: it is read
    once, and every point of the sweep sees the same samples in the same order.
    """

    def __init__(self, fit: Readings) -> None:
        self._fit = fit
        self._histograms: dict[tuple[str, LayerConfig], Histogram] = {}
        # the loaders are kept: while they live, nothing else can have their identity
        self._validation: dict[int, tuple[Any, Readings]] = {}
        self._scores: dict[tuple[int, str, LayerConfig], Tensor] = {}

    def add(self, loader: Any, readings: Readings) -> None:
        """Remember what the network said about a validation loader."""
        readings.check_finite("validation")
        self._validation[id(loader)] = (loader, readings)

    def __contains__(self, loader: Any) -> bool:
        return id(loader) in self._validation

    def readings(self, loader: Any) -> Readings:
        """The readings of a loader that was added."""
        return self._validation[id(loader)][1]

    def coverage(self, layers: Mapping[str, LayerConfig]) -> Coverage:
        """Counts of the fitting set under these settings."""
        coverage = Coverage(layers)
        coverage.histograms = {n: self._histogram(n, config) for n, config in layers.items()}
        return coverage

    def score(self, loader: Any, layers: Mapping[str, LayerConfig]) -> Tensor:
        """Scores `[samples]` of a loader that was added."""
        return combine({n: self._layer_score(loader, n, layers[n]) for n in layers}, layers)

    def _histogram(self, name: str, config: LayerConfig) -> Histogram:
        key = (name, replace(config, full_count=1, weight=1.0))  # neither changes a count
        if key not in self._histograms:
            single = Coverage({name: key[1]})
            for part in self._fit.batches():
                single.update(part)
            single.check()
            self._histograms[key] = single.histograms[name]
        return self._histograms[key]

    def _layer_score(self, loader: Any, name: str, config: LayerConfig) -> Tensor:
        key = (id(loader), name, replace(config, weight=1.0))
        if key not in self._scores:
            self._scores[key] = self.coverage({name: key[2]}).score(self.readings(loader))
        return self._scores[key]
