"""Which settings apply: a config the user wrote, or the shipped one for this data and network."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from torch import nn

from nac_openood.config import NACConfig
from nac_openood.core.layers import describe, recognise
from nac_openood.errors import NACError
from nac_openood.presets import preset, presets


def plain(config: Any) -> Any:
    """OpenOOD's `Config` (which answers None for what it lacks) as plain dicts and lists."""
    if isinstance(config, Mapping):
        return {key: plain(value) for key, value in config.items()}
    return [plain(value) for value in config] if isinstance(config, (list, tuple)) else config


def written(config: Any) -> Optional[NACConfig]:
    """The settings in an OpenOOD config, or None where it names no layers."""
    root = plain(config).get("postprocessor") or {}
    args = root.get("postprocessor_args") or {}
    if not (args.get("layers") or root.get("layer_kwargs")):
        return None
    return NACConfig.from_dict({"postprocessor": root})


def shipped(id_name: Optional[str], net: nn.Module) -> NACConfig:
    """The shipped settings for an ID data set and the network actually passed."""
    benchmarks = sorted({benchmark for benchmark, _ in presets()})
    if id_name not in benchmarks:
        raise NACError(
            f"there are no shipped NAC settings for ID data '{id_name}', only for {benchmarks}. "
            "Write configs/postprocessors/nac.yml with 'postprocessor_args: layers: ...'."
        )
    row = recognise(net)
    if row is None:
        raise NACError(f"no shipped settings fit: {describe(net)}")
    return preset(id_name, row[0].family)
