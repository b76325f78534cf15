"""What a detector answers: scores of a dataset, and why a sample has its score."""

from __future__ import annotations

import warnings
from typing import Mapping, NamedTuple, Optional

import numpy as np
from torch import Tensor

from nac_openood.core.layer_config import whole_number
from nac_openood.core.pvalues import PValues
from nac_openood.core.reading import Probed
from nac_openood.core.rule import Rule
from nac_openood.errors import NACError


class Scores(NamedTuple):
    """Scores of a dataset as NumPy arrays `[samples]`; `label` is -1 where there was none.

    Higher scores mean more in-distribution. `by_layer` holds what each layer contributed,
    `[samples]` each, for methods that have layers.
    """

    score: np.ndarray
    prediction: np.ndarray
    label: np.ndarray
    by_layer: Mapping[str, np.ndarray] = {}


class Explanation(NamedTuple):
    """Why a sample has its score.

    Attributes:
        score: higher = more in-distribution.
        p_value: None before `calibrate`.
        contributions: how much each layer (and the logits) adds; they sum to the score.
        neurons: by layer, the least covered neurons and how well they are covered.
    """

    score: float
    p_value: Optional[float]
    contributions: dict[str, float]
    neurons: dict[str, dict[int, float]]


def explanations(
    rule: Rule, probed: Probed, pvalues: Optional[PValues], top: int
) -> list[Explanation]:
    """Explain every sample of a pass, naming the `top` least covered neurons per layer."""
    top = whole_number("top", top, 0)
    parts = rule.parts(probed)
    score = rule.combine(parts)
    report_nonfinite(score)
    added = rule.contributions(parts)
    unusual = None if pvalues is None else pvalues(score).tolist()
    worst = {
        name: covered.topk(min(top, covered.shape[1]), dim=1, largest=False)
        for name, covered in rule.neurons(probed).items()
    }
    return [
        Explanation(
            score=float(score[row]),
            p_value=None if unusual is None else unusual[row],
            contributions={name: float(part[row]) for name, part in added.items()},
            neurons={
                name: dict(zip(found.indices[row].tolist(), found.values[row].tolist()))
                for name, found in worst.items()
            },
        )
        for row in range(len(score))
    ]


def report_nonfinite(scores: Tensor, nonfinite: str = "raise") -> None:
    """Raise or warn where samples have readings that are not finite, and so scores of NaN."""
    if nonfinite not in ("raise", "nan"):
        raise NACError(f"nonfinite must be 'raise' or 'nan', got {nonfinite!r}.")
    broken = int(scores.isnan().sum())
    if not broken:
        return
    message = f"{broken} of {len(scores)} samples have NaN or Inf readings"
    if nonfinite == "raise":
        raise NACError(
            f"{message}. Check the inputs (normalization, corrupt images) and the precision, or "
            "pass nonfinite='nan' to score them NaN."
        )
    warnings.warn(f"{message}; their score is NaN.", RuntimeWarning, stacklevel=3)
