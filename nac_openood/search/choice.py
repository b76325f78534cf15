"""Defaults of a search: which layers of the readings, and which values to try."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from torch import nn

from nac_openood.core.layer_config import LayerConfig
from nac_openood.detector.config import NACConfig, Sweep, read_config
from nac_openood.detector.presets import preset, preset_for, preset_or_auto
from nac_openood.errors import NACError
from nac_openood.files import is_file
from nac_openood.network.architectures import known_layers, recognize
from nac_openood.network.fingerprint import identity
from nac_openood.search.space import paper_space
from nac_openood.search.stored import ReadingSet


def config_for(net: nn.Module, benchmark: str, names: Optional[Sequence[str]] = None) -> NACConfig:
    """The shipped settings, or the default ones of the layers `names`, deepest first."""
    if not names:
        return preset_for(net, benchmark)
    order = [layer.alias for layer in known_layers(net)]
    if all(name in order for name in names):
        names = sorted(names, key=order.index)
    n_samples = preset_or_auto(net, benchmark).n_samples
    return NACConfig({name: LayerConfig() for name in names}, n_samples=n_samples)


def about_network(net: nn.Module) -> dict[str, Any]:
    """What to note beside the readings of a network."""
    row = recognize(net)
    return {"family": None if row is None else row[0].family, "network": identity(net)}


def layers_and_lists(
    readings: ReadingSet, space: str, names: Optional[Sequence[str]] = None
) -> tuple[dict[str, LayerConfig], Sweep]:
    """The layers to search and the lists to try.

    Args:
        readings: what there is.
        space: "paper", "preset" (the lists shipped for the readings' benchmark and network) or
            the path of a YAML file with a sweep.
        names: layers to search; None takes all in the readings.
    """
    unknown = [name for name in names or () if name not in readings.fit]
    if unknown:
        raise NACError(
            f"the readings have no layers {unknown}, only {list(readings.fit)}. Choose among "
            "them, or read the network again."
        )
    chosen = [name for name in readings.fit if not names or name in names]
    if space == "paper":
        return {name: LayerConfig() for name in chosen}, paper_space(chosen)
    config = _preset_of(readings.about) if space == "preset" else _config_at(space)
    lists = {name: config.sweep[name] for name in chosen if name in config.sweep}
    if not lists:
        raise NACError(
            f"`space={space}` has no lists for the layers {chosen}, only for {list(config.sweep)}."
        )
    return {name: config.layers.get(name, LayerConfig()) for name in chosen}, lists


def _preset_of(about: Mapping[str, Any]) -> NACConfig:
    benchmark, family = about.get("id_data"), about.get("family")
    if benchmark is None or family is None:
        raise NACError(
            "`space='preset'` needs readings that name their benchmark and architecture, and these "
            "do not. Use `space='paper'`, or a YAML file with a sweep."
        )
    return preset(benchmark, family)


def _config_at(space: str) -> NACConfig:
    if not is_file(space):
        raise NACError(f"`space`: expected 'paper', 'preset' or a YAML file, got '{space}'.")
    return read_config(space)
