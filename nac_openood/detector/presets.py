"""The argument `layers` of a detector: presets, names, settings or "auto".

A preset is a YAML file for each benchmark and family of architectures.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence, Type, Union

from torch import nn

from nac_openood.core.rule import Rule
from nac_openood.detector.config import AUTO, NACConfig, read_config
from nac_openood.errors import NACError, ProbeError
from nac_openood.network.architectures import Layer, describe, find_layer, recognize, table_layers
from nac_openood.network.auto import auto_layers

LayerChoice = Union[str, Sequence[str], Mapping[str, Any]]

_PACKAGE = Path(__file__).parents[1]
#: Inside the package in an installed wheel, beside it in a checkout.
CONFIG_ROOT = next(
    (d for d in (_PACKAGE / "configs", _PACKAGE.parent / "configs") if d.is_dir()),
    _PACKAGE / "configs",
)


def presets(rule: str = "nac") -> dict[tuple[str, str], Path]:
    """The shipped files of a rule by (benchmark, family), e.g. `nac_cifar10_resnet.yml`."""
    files = sorted((CONFIG_ROOT / "postprocessors").glob(f"{rule}_*_*.yml"))
    split = {path: path.stem.rsplit("_", 2) for path in files}
    return {(b, family): path for path, (name, b, family) in split.items() if name == rule}


def preset(benchmark: str, family: str, rule: str = "nac") -> NACConfig:
    """The shipped settings of `benchmark` for networks of `family`."""
    known = presets(rule)
    if (benchmark, family) not in known:
        raise NACError(
            f"there is no preset '{benchmark}' for rule '{rule}' and '{family}' networks; there "
            f"are {sorted(known)}. Pass your own settings: NACDetector(net, {{'avgpool': "
            "LayerConfig(...), ...}), or `nac_config` in a comparison."
        )
    return read_config(known[benchmark, family])


def preset_for(net: nn.Module, benchmark: str, rule: str = "nac") -> NACConfig:
    """The shipped settings of `benchmark` for the architecture of `net`.

    A rule without any shipped settings has automatic layers.

    Raises:
        NACError: there is no such preset; the message says how to pass other settings.
    """
    if not presets(rule):
        return NACConfig({}, rule=rule)
    row = recognize(net)
    if row is None:
        raise ProbeError(f"preset '{benchmark}' cannot be used: {describe(net)}")
    return preset(benchmark, row[0].family, rule)


def preset_or_auto(net: nn.Module, benchmark: str, rule: str = "nac") -> NACConfig:
    """The shipped settings, or automatic layers with default settings where nothing is shipped."""
    try:
        return preset_for(net, benchmark, rule)
    except NACError:
        return NACConfig({}, rule=rule)


def layer_settings(net: nn.Module, layers: LayerChoice, rule: Type[Rule]) -> dict[str, Any]:
    """The settings of each layer by name; empty if layers must be found by running the network.

    They must be for "auto", and for presets of a rule without shipped settings.

    Args:
        net: the network.
        layers: "auto", the name of a preset, a list of layer names (default settings), or a
            mapping of layer names to settings.
        rule: the rule that the settings are for.
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
            f"settings, got {layers!r}. Names are strings: '1', not 1."
        )
    settings = dict(layers) if isinstance(layers, Mapping) else {name: kind() for name in names}
    for name, value in settings.items():
        if not isinstance(value, kind):
            raise NACError(f"layer '{name}': expected a {kind.__name__}, got {value!r}.")
    if not settings:
        raise NACError("no layers given: name at least one, or a preset such as 'cifar10'.")
    return settings


def _check_preset(net: nn.Module, name: str, rule: Type[Rule]) -> None:
    """Refuse an unknown name, also for rules that have no shipped settings."""
    known = sorted({benchmark for benchmark, _ in presets()})
    if name in known:
        return
    close = difflib.get_close_matches(name, [*known, AUTO], n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    if name in dict(net.named_modules()) or name in {layer.alias for layer in table_layers(net)}:
        hint = f" To read the layer '{name}', pass a list: `layers=['{name}']`."
    raise NACError(
        f"there is no preset '{name}' for rule '{rule.name}'; there are {known}, and '{AUTO}', "
        f"which finds layers by running the network.{hint}"
    )


def automatic_settings(net: nn.Module, rule: Type[Rule], x: Any) -> dict[str, Any]:
    """Default settings of the layers found by running `net` on a batch, by module path."""
    found = auto_layers(net, x)
    layers = found.deepest_first if rule.reads_head_input else found.early
    return {layer.path: rule.layer_settings(layout=layer.layout) for layer in layers}


def locate_layers(net: nn.Module, settings: Mapping[str, Any]) -> dict[str, Layer]:
    """Where in `net` each layer is, by the names in `settings`."""
    found: dict[str, Layer] = {}
    by_path: dict[str, str] = {}
    for name, config in settings.items():
        layer = find_layer(net, name)
        found[name] = Layer(name, layer.path, config.layout) if config.layout else layer
        other = by_path.setdefault(layer.path, name)
        if other != name:  # it would be counted twice in the mean
            raise NACError(f"layers '{other}' and '{name}' are the same module '{layer.path}'.")
    return found
