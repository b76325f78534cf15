"""Neuron Activation Coverage: know when a network's answer cannot be trusted.

Everything here is imported when it is first used, so that `import nac_openood` is quick. The names
are in `__init__.pyi`, which type checkers and editors read.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
#: The module of each public name.
_HOMES = {name: home for home, name in re.findall("^from (.+) import (.+) as", _STUB, re.MULTILINE)}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
