"""How unusual a score is among held-out in-distribution scores.

`p = (1 + #{c <= x}) / (n + 1)` for `n` held-out scores `c`: about a share `p` of new
in-distribution data scores this low or lower. Below their 5 % quantile, where few scores are left
to count, an exponential tail takes over: `p = 0.05 * exp(-(q05 - x) / b)`, with `b` the mean
distance of the scores below the quantile.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nac_openood.errors import NACError

_TAIL = 0.05
_LEAST = 1e-300
#: Fewer held-out scores say nothing about a tail.
MIN_SAMPLES = 16


class PValues:
    """p-values against held-out in-distribution scores.

    Args:
        scores: of held-out data, `[samples]`, at least `MIN_SAMPLES`; never of the data that
            something was fitted on, which networks remember.
    """

    def __init__(self, scores: Any) -> None:
        values = torch.as_tensor(scores).detach().double().cpu().flatten()
        if len(values) < MIN_SAMPLES:
            raise NACError(
                f"p-values need at least {MIN_SAMPLES} held-out samples, got {len(values)}. "
                "Calibrate on more in-distribution data."
            )
        broken = int((~values.isfinite()).sum())
        if broken:
            raise NACError(
                f"{broken} of {len(values)} held-out scores are NaN or Inf: check the inputs."
            )
        self.scores = values.sort().values
        self._q05 = self.scores.quantile(_TAIL)
        below = self._q05 - self.scores[self.scores < self._q05]
        # all scores equal: whatever is lower is as unusual as can be told
        self._scale = below.mean() if len(below) else torch.tensor(0.0, dtype=torch.float64)

    def log(self, scores: Tensor) -> Tensor:
        """Logarithms of the p-values, float64 in the shape of `scores`; NaN where those are."""
        x = scores.double()
        held, q05, scale = (t.to(x.device) for t in (self.scores, self._q05, self._scale))
        counted = torch.searchsorted(held, x.contiguous(), right=True)
        body = ((1 + counted).double() / (len(held) + 1)).log()
        tail = torch.log(torch.tensor(_TAIL, dtype=torch.float64)) - (q05 - x) / scale
        floor = torch.log(torch.tensor(_LEAST, dtype=torch.float64))
        logs = torch.where(x < q05, tail, body).clamp(min=float(floor))
        return logs.masked_fill(x.isnan(), float("nan"))

    def __call__(self, scores: Tensor) -> Tensor:
        """p-values, float64 in the shape of `scores`."""
        return self.log(scores).exp()
