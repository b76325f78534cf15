"""NAC entropy as a training loss, and small trainers for several source domains.

Everything here is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nac_openood.lazy import lazy_names

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


__getattr__, __dir__ = lazy_names(__name__, _HOMES)

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
