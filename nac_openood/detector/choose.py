"""What a user may write as `layers`, and what it means for their network."""

from __future__ import annotations

import difflib
from typing import Any, Iterable, Mapping, Sequence, Type, Union

from torch import nn

from nac_openood.core.rule import Rule
from nac_openood.detector.config import AUTO
from nac_openood.detector.presets import preset_for, presets
from nac_openood.errors import NACError
from nac_openood.network.architectures import Layer, find_layer, known_layers
from nac_openood.network.auto import auto_layers

LayerChoice = Union[str, Sequence[str], Mapping[str, Any]]


def layer_settings(net: nn.Module, layers: LayerChoice, rule: Type[Rule]) -> dict[str, Any]:
    """The settings of each layer, by the names the user gave.

    Empty where the layers are to be found by running the network: for "auto", and for the presets
    of a rule that has no settings to ship.

    Args:
        net: the network.
        layers: "auto", the name of a preset, a list of layer names (default settings), or a
            mapping of layer names to settings.
        rule: whose settings.
    """
    if isinstance(layers, str):
        if layers == AUTO:
            return {}
        _check_preset(net, layers, rule)
        return dict(preset_for(net, layers, rule.name).layers)
    kind = rule.layer_settings
    names = list(layers) if isinstance(layers, Iterable) else [layers]
    if not all(isinstance(name, str) for name in names):
        raise NACError(
            "`layers` must be a preset, a list of layer names, or a mapping of layer names to "
            f"settings, got {layers!r}. Names are texts: '1', not 1."
        )
    settings = layers if isinstance(layers, Mapping) else {name: kind() for name in names}
    for name, given in settings.items():
        if not isinstance(given, kind):
            raise NACError(f"layer '{name}': expected a {kind.__name__}, got {given!r}.")
    if not settings:
        raise NACError("no layers given: name at least one, or a preset such as 'cifar10'.")
    return dict(settings)


def _check_preset(net: nn.Module, name: str, rule: Type[Rule]) -> None:
    """Refuse a name of no preset, also where a rule has the same settings for all of them."""
    known = sorted({benchmark for benchmark, _ in presets()})
    if name in known:
        return
    close = difflib.get_close_matches(name, [*known, AUTO], n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    if name in dict(net.named_modules()) or name in {layer.alias for layer in known_layers(net)}:
        hint = f" To read the layer '{name}', pass a list: `layers=['{name}']`."
    raise NACError(
        f"there is no preset '{name}' for rule '{rule.name}'; there are {known}, and '{AUTO}', "
        f"which finds layers by running the network.{hint}"
    )


def automatic_settings(net: nn.Module, x: Any, rule: Type[Rule]) -> dict[str, Any]:
    """Default settings of the layers found by running `net` on a batch, by module path."""
    found = auto_layers(net, x)
    layers = found.deepest_first if rule.reads_head_input else found.early
    return {layer.path: rule.layer_settings(layout=layer.layout) for layer in layers}


def locate_layers(net: nn.Module, settings: Mapping[str, Any]) -> dict[str, Layer]:
    """Where in `net` each layer is, by the names the user gave."""
    found = {name: find_layer(net, name) for name in settings}
    for name, given in settings.items():
        if given.layout is not None:
            found[name] = Layer(name, found[name].path, given.layout)
    _refuse_twins(found)
    return found


def _refuse_twins(found: Mapping[str, Layer]) -> None:
    """Two names of one module would count it twice in the mean."""
    by_path: dict[str, str] = {}
    for name, layer in found.items():
        twin = by_path.setdefault(layer.path, name)
        if twin != name:
            raise NACError(f"layers '{twin}' and '{name}' are the same module '{layer.path}'.")
