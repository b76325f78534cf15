"""What a user may write as `layers`, and what it means for their network."""

from __future__ import annotations

from typing import Mapping, Sequence, Union

from torch import nn

from nac_openood.config import LayerConfig
from nac_openood.core.layers import Layer, describe, find_layer, recognise
from nac_openood.errors import NACError, ProbeError
from nac_openood.presets import preset

LayerChoice = Union[str, Sequence[str], Mapping[str, LayerConfig]]


def choose_layers(
    net: nn.Module, layers: LayerChoice
) -> tuple[dict[str, Layer], dict[str, LayerConfig]]:
    """Where to read and with which settings, both by the names the user gave.

    Args:
        net: the network.
        layers: the name of a preset, a list of layer names (default settings), or a mapping of
            layer names to `LayerConfig`.
    """
    configs = _configs(net, layers)
    if not configs:
        raise NACError("no layers given: name at least one, or a preset such as 'cifar10'.")
    found = {name: find_layer(net, name) for name in configs}
    for name, config in configs.items():
        if config.layout is not None:
            found[name] = Layer(name, found[name].path, config.layout)
    _refuse_twins(found)
    return found, configs


def _configs(net: nn.Module, layers: LayerChoice) -> dict[str, LayerConfig]:
    if isinstance(layers, str):
        row = recognise(net)
        if row is None:
            raise ProbeError(f"preset '{layers}' cannot be used: {describe(net)}")
        return dict(preset(layers, row[0].family).layers)
    if isinstance(layers, Mapping):
        for name, config in layers.items():
            if not isinstance(config, LayerConfig):
                raise NACError(f"layer '{name}': expected a LayerConfig, got {config!r}.")
        return dict(layers)
    return {name: LayerConfig() for name in layers}


def _refuse_twins(found: Mapping[str, Layer]) -> None:
    """Two names of one module would count it twice in the mean."""
    by_path: dict[str, str] = {}
    for name, layer in found.items():
        twin = by_path.setdefault(layer.path, name)
        if twin != name:
            raise NACError(f"layers '{twin}' and '{name}' are the same module '{layer.path}'.")
