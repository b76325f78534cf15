"""What a detector says about images, as `nac-openood score` and the service tell it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Sequence

from torch import Tensor

from nac_openood.sources.fitted import Deployed


class Judged(NamedTuple):
    """What a detector says about one image.

    Args:
        path: of the image.
        label: name of the network's class.
        confidence: the softmax probability of that class.
        score: higher = more in-distribution; NaN where readings were NaN or Inf.
        p_value: how unusual the score is.
        is_out: whether it counts as out-of-distribution.
        problem: why the image cannot be read, with nothing else known; "" if it can.
    """

    path: str
    label: str = ""
    confidence: float = float("nan")
    score: float = float("nan")
    p_value: float = float("nan")
    is_out: bool = False
    problem: str = ""

    @property
    def decision(self) -> str:
        """`in` or `out`."""
        return "out" if self.is_out else "in"

    def fields(self) -> dict[str, Any]:
        """The columns of `nac-openood score`, by name and in order."""
        return {
            "path": self.path,
            "class": self.label,
            "confidence": self.confidence,
            "score": self.score,
            "p_value": self.p_value,
            "decision": self.decision,
        }

    def json_fields(self) -> dict[str, Any]:
        """The same with None for NaN and infinity, which JSON does not have."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in self.fields().items()
        }


def judge_batch(
    deployed: Deployed, x: Tensor, paths: Sequence[str], *, alpha: float
) -> list[Judged]:
    """Judge images `[batch, ...]` in one pass over the network; one result per path."""
    verdicts = deployed.detector.judge(x)
    columns = (*verdicts, verdicts.out(alpha))
    return [
        Judged(path, deployed.class_name(number), *rest)
        for path, number, *rest in zip(paths, *(column.tolist() for column in columns))
    ]
