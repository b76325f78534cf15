"""Which settings apply: a config the user wrote, or the shipped one for this data and network."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from nac_openood.detector.config import NACConfig


def plain(config: Any) -> Any:
    """OpenOOD's `Config` (which answers None for what it lacks) as plain dicts and lists."""
    if isinstance(config, Mapping):
        return {key: plain(value) for key, value in config.items()}
    return [plain(value) for value in config] if isinstance(config, (list, tuple)) else config


def written(document: Mapping[str, Any]) -> Optional[NACConfig]:
    """The settings in an OpenOOD config, or None where it names no layers."""
    root = document.get("postprocessor") or {}
    args = root.get("postprocessor_args") or {}
    if not (args.get("layers") or root.get("layer_kwargs")):
        return None
    return NACConfig.from_dict({"postprocessor": root})
