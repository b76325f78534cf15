"""NAC entropy as a training loss, and small trainers for several source domains.

Everything here is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nac_openood.training.algorithms import CORAL, ERM, Algorithm, Outputs, SelfReg
    from nac_openood.training.checkpoints import SaveCheckpoints
    from nac_openood.training.entropy import NACEntropy
    from nac_openood.training.loop import Logged, train

#: Where each name lives.
_HOMES = {
    "Algorithm": "algorithms",
    "CORAL": "algorithms",
    "ERM": "algorithms",
    "Logged": "loop",
    "NACEntropy": "entropy",
    "Outputs": "algorithms",
    "SaveCheckpoints": "checkpoints",
    "SelfReg": "algorithms",
    "train": "loop",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'nac_openood.training' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"nac_openood.training.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return sorted({*globals(), *_HOMES})


__all__ = [
    "CORAL",
    "ERM",
    "Algorithm",
    "Logged",
    "NACEntropy",
    "Outputs",
    "SaveCheckpoints",
    "SelfReg",
    "train",
]
