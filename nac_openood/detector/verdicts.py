"""What a detector says about samples, all from one pass: class, confidence, score and p-value."""

from __future__ import annotations

from numbers import Real
from typing import NamedTuple

from torch import Tensor

from nac_openood.core.devices import double
from nac_openood.core.pvalues import PValues
from nac_openood.core.reading import Probed
from nac_openood.core.rule import Rule
from nac_openood.errors import NACError

#: The p-value at or below which a sample counts as out-of-distribution, unless told otherwise.
ALPHA = 0.05


class Verdicts(NamedTuple):
    """What a detector says about a batch, in tensors `[batch]` on the CPU.

    Args:
        prediction: the network's class, int64.
        confidence: the softmax probability of that class, float64.
        score: higher = more in-distribution; NaN where readings were NaN or Inf.
        p_value: how unusual the score is, float64; NaN where the score is.
    """

    prediction: Tensor
    confidence: Tensor
    score: Tensor
    p_value: Tensor

    def out(self, alpha: float = ALPHA) -> Tensor:
        """Whether each sample counts as out-of-distribution, bool `[batch]`.

        About a share `alpha` of in-distribution samples will. Samples without a p-value always do.
        """
        return ~(self.p_value > checked_alpha(alpha))


def checked_alpha(alpha: float) -> float:
    """The level, if it is one."""
    if not isinstance(alpha, Real) or not 0 < alpha < 1:
        raise NACError(f"`alpha` must lie between 0 and 1, got {alpha!r}. Usual is {ALPHA}.")
    return float(alpha)


def verdicts(probed: Probed, rule: Rule, p_values: PValues) -> Verdicts:
    """Judge the samples of a pass."""
    confidence, prediction = double(probed.logits).softmax(dim=1).max(dim=1)
    score = rule.score(probed)
    found = prediction, confidence, score, p_values(score)
    return Verdicts(*(tensor.cpu() for tensor in found))
