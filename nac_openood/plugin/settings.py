"""Which settings apply: a config the user wrote, or the shipped one for this data and network."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping, Optional, Union

from nac_openood.core.layer_config import refuse_unknown
from nac_openood.core.rules import rule_named
from nac_openood.detector.config import SECTIONS, NACConfig, parsed
from nac_openood.errors import NACError


def plain(config: Any) -> Any:
    """OpenOOD's `Config` (which answers None for what it lacks) as plain dicts and lists."""
    if isinstance(config, Mapping):
        return {key: plain(value) for key, value in config.items()}
    return [plain(value) for value in config] if isinstance(config, (list, tuple)) else config


def written(document: Mapping[str, Any]) -> Optional[NACConfig]:
    """The settings in an OpenOOD config, or None if it has but the rule's name and `APS_mode`.

    Raises:
        NACError: they are wrong, or there are some, but none for layers.
    """
    root = document.get("postprocessor") or {}
    if not isinstance(root, Mapping) or any(
        value not in (None, {}) for key, value in root.items() if key not in ("name", "APS_mode")
    ):
        return NACConfig.from_dict({"postprocessor": root})
    rule_named(str(root.get("name") or "nac"))
    return None


def written_in(path: Union[str, Path], rule: str) -> Optional[NACConfig]:
    """The settings of a rule in a YAML file of OpenOOD's shape; see `written`.

    Raises:
        NACError: they cannot be read, or are wrong; the message names the file.
    """

    def parse(document: Mapping[str, Any]) -> Optional[NACConfig]:
        refuse_unknown(document, SECTIONS)
        found = written(document)
        root = document.get("postprocessor")
        if not root or root.get("name", "nac") != rule:
            raise NACError(f"expected 'name: {rule}' under 'postprocessor:', got {root!r}.")
        return found

    return parsed(path, parse)
