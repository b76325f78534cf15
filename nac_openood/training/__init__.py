"""NAC entropy as a training loss, and small trainers for several source domains."""

from __future__ import annotations

from nac_openood.training.algorithms import CORAL, ERM, Algorithm, Outputs, SelfReg
from nac_openood.training.entropy import NACEntropy
from nac_openood.training.loop import Logged, SaveCheckpoints, train

__all__ = ["CORAL", "ERM", "Algorithm", "Logged", "NACEntropy", "Outputs"]
__all__ += ["SaveCheckpoints", "SelfReg", "train"]
