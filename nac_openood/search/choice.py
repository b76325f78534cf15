"""What a search starts from when little is said: layers, lists and the size of the fitting set."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

from torch import nn

from nac_openood.config import LayerConfig, NACConfig, read_config
from nac_openood.core.fingerprint import fingerprint
from nac_openood.core.layers import describe, known_layers, recognise
from nac_openood.errors import NACError
from nac_openood.presets import preset, presets
from nac_openood.search.space import Sweep, paper_space
from nac_openood.search.stored import ReadingSet


def default_layers(
    net: nn.Module, benchmark: str, names: Optional[Sequence[str]] = None
) -> dict[str, LayerConfig]:
    """The preset's layers, or `names`, deepest first where the architecture is known."""
    if names:
        order = [layer.alias for layer in known_layers(net)]
        if all(name in order for name in names):
            names = sorted(names, key=order.index)
        return {name: LayerConfig() for name in names}
    row = recognise(net)
    if row is None:
        raise NACError(f"name the layers with --layers: {describe(net)}")
    if (benchmark, row[0].family) not in presets():
        known = [layer.alias for layer in known_layers(net)]
        raise NACError(
            f"there is no preset for '{row[0].family}' networks on '{benchmark}'. Name the layers "
            f"with --layers; this network has {known}."
        )
    return dict(preset(benchmark, row[0].family).layers)


def default_samples(net: nn.Module, benchmark: str) -> int:
    """The preset's number of fitting samples, or 1000."""
    row = recognise(net)
    if row is None or (benchmark, row[0].family) not in presets():
        return 1000
    return preset(benchmark, row[0].family).n_samples or 1000


def about_network(net: nn.Module) -> dict[str, Any]:
    """What to note beside its readings."""
    row = recognise(net)
    return {"family": None if row is None else row[0].family, "network": fingerprint(net)}


def layers_and_lists(
    readings: ReadingSet, space: str, names: Optional[Sequence[str]] = None
) -> tuple[dict[str, LayerConfig], Sweep]:
    """The layers to search and the lists to try.

    Args:
        readings: what there is.
        space: "paper", "preset" (the lists shipped for the readings' benchmark and network) or
            the path of a YAML file with a sweep.
        names: of layers; None takes all in the readings.
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
            f"--space {space} has no lists for the layers {chosen}, only for {list(config.sweep)}."
        )
    return {name: config.layers.get(name, LayerConfig()) for name in chosen}, lists


def _preset_of(about: Mapping[str, Any]) -> NACConfig:
    benchmark, family = about.get("id_data"), about.get("family")
    if benchmark is None or family is None:
        raise NACError(
            "--space preset needs to know benchmark and architecture, which these readings do not "
            "tell. Use --space paper, or a YAML file with a sweep."
        )
    return preset(benchmark, family)


def _config_at(space: str) -> NACConfig:
    if not Path(space).is_file():
        raise NACError(f"--space: expected 'paper', 'preset' or a YAML file, got '{space}'.")
    return read_config(space)
