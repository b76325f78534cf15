"""How NAC+ adds up evidence of different kinds: as p-values against the same calibration data.

`early` is the sum of the log p-values of everything that the early layers say, calibrated once
more; `score = w log p(logits) - log(1 + s / p(early))`. Where the early layers find a sample
unusual, `p(early)` below `s`, they count in full; above, where they tell nothing, hardly at all.
"""

from __future__ import annotations

from typing import Mapping

import torch
from torch import Tensor

from nac_openood.core.devices import double
from nac_openood.core.pvalues import PValues

#: The name of the logits among the parts of a score; all others are of early layers.
LOGITS = "logits"
#: The name of the early layers together.
EARLY = "early"


class Fusion:
    """From parts to scores.

    Args:
        calibration: the parts of held-out in-distribution data by name, `[samples]` each.
        logit_weight: the weight `w` of the logits.
        softness: the p-value `s` from which on the early layers count.

    Attributes:
        scores: of the calibration data, each sample calibrated on the others, `[samples]`.
    """

    def __init__(
        self, calibration: Mapping[str, Tensor], *, logit_weight: float, softness: float
    ) -> None:
        self.calibration = {name: double(part).cpu() for name, part in calibration.items()}
        self.logit_weight, self.softness = logit_weight, softness
        self._pvalues = {name: PValues(part) for name, part in self.calibration.items()}
        left_out = {name: pvalues.left_out() for name, pvalues in self._pvalues.items()}
        self._early = PValues(_together(left_out))
        self.scores = self._fused(left_out[LOGITS], self._early.left_out())

    def evidence(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Log p-values of every part, and of the early layers together under `EARLY`."""
        logs = {name: self._pvalues[name].log(part) for name, part in parts.items()}
        return {**logs, EARLY: self._early.log(_together(logs))}

    def score(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The score, float64 `[batch]`."""
        logs = self.evidence(parts)
        return self._fused(logs[LOGITS], logs[EARLY])

    def contributions(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What each part adds to the score; early layers share theirs by their log p-values."""
        logs = self.evidence(parts)
        early, together = self._softened(logs[EARLY]), _together(logs)
        mine = _early_parts(logs)
        even = torch.full_like(together, 1 / len(mine))  # nothing unusual, so nothing to share by
        shares = {
            name: early * torch.where(together == 0, even, log / together)
            for name, log in mine.items()
        }
        return {**shares, LOGITS: self.logit_weight * logs[LOGITS]}

    def _fused(self, logits: Tensor, early: Tensor) -> Tensor:
        return self.logit_weight * logits + self._softened(early)

    def _softened(self, early: Tensor) -> Tensor:
        """`-log(1 + s / p)` of log p-values."""
        return -torch.log1p(self.softness * torch.exp(-early))


def _together(logs: Mapping[str, Tensor]) -> Tensor:
    """The sum of the early layers' log p-values."""
    first, *others = _early_parts(logs).values()
    for part in others:
        first = first + part
    return first


def _early_parts(logs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sorted: sums must not depend on the order of a dict, which a file does not keep."""
    return {name: logs[name] for name in sorted(logs) if name not in (LOGITS, EARLY)}
