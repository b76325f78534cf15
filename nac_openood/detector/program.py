"""A calibrated detector as one module: batch in; logits, score, p-value and decision out."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Mapping

from torch import Tensor, nn

from nac_openood.core.portable import Portable
from nac_openood.core.pvalues import PValues
from nac_openood.core.rule import Rule
from nac_openood.network.architectures import Layer
from nac_openood.network.probe import ReadNetwork

#: What a program returns, in order.
OUTPUTS = ("logits", "score", "p_value", "decision")


class DetectorProgram(nn.Module):
    """What `NACDetector` computes for a batch, without Python in between: made for tracing.

    Args:
        net: the network, whose weights are shared, not copied.
        layers: where the layers of the rule are, by name.
        rule: fitted and calibrated, without gradients among its needs.
        pvalues: from scores to p-values.
        alpha: a sample is called out-of-distribution if its p-value is at most this.
        portable: whether to use only operations that other runtimes have, too. The results are
            the same.
    """

    def __init__(
        self,
        net: nn.Module,
        layers: Mapping[str, Layer],
        rule: Rule,
        pvalues: PValues,
        *,
        alpha: float,
        portable: bool,
    ) -> None:
        super().__init__()
        self.tapped = ReadNetwork(net, layers, mean=rule.needs.mean)
        # a copy: what tracing leaves behind in the rule must not reach the detector
        self._rule = type(rule).restore(rule.settings(), rule.tensors())
        self._pvalues, self._alpha, self._portable = pvalues, alpha, portable

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """The `OUTPUTS` for a batch `[batch, ...]` by name.

        `logits` are `[batch, classes]`; `score` and `p_value` are float64 `[batch]`; `decision`
        is bool `[batch]`, True where a sample is called out-of-distribution, as it is where its
        readings are NaN or Inf.
        """
        probed = self.tapped(x)
        with Portable() if self._portable else nullcontext():
            score = self._rule.score(probed)
            p_value = self._pvalues(score)
            decision = ~(p_value > self._alpha)
        return dict(zip(OUTPUTS, (probed.logits, score, p_value, decision)))
