"""Fitting on one batch at a time, for data that comes when it comes."""

from __future__ import annotations

from collections import Counter

from torch import Tensor

from nac_openood.core.coverage import not_finite
from nac_openood.core.reading import Probed
from nac_openood.core.rule import Rule
from nac_openood.detector.batches import Batch, check_labels
from nac_openood.detector.store import FitSummary
from nac_openood.errors import NACError


def add_batch(rule: Rule, batch: Batch, probed: Probed) -> FitSummary:
    """Add a batch to a rule, or nothing of it if something is wrong with it.

    Args:
        rule: what is being fitted.
        batch: training data.
        probed: what was read of it.

    Returns:
        What the batch adds to what the rule was fitted on.
    """
    check_labels(batch.label, probed.logits.shape[1])
    refuse_unlabeled(rule, batch)
    broken = int(_broken(rule, probed).sum())
    if broken:
        raise NACError(
            f"{broken} of {batch.size} samples of this batch have NaN or Inf readings; nothing of "
            "it was counted. Check the inputs (normalization, corrupt images) and the precision."
        )
    rule.update(probed, batch.label)
    labels = [] if batch.label is None else batch.label.tolist()
    return FitSummary(batch.size, dict(Counter(labels)))


def refuse_unlabeled(rule: Rule, batch: Batch) -> None:
    """Raise if a rule needs labels and a batch has none."""
    if rule.needs.labels and batch.label is None:
        raise NACError(
            f"rule '{rule.name}' is fitted class by class, but this loader yields no labels. Let "
            "it yield (x, y)."
        )


def _broken(rule: Rule, probed: Probed) -> Tensor:
    """Which samples `[batch]` have a NaN or Inf in what the rule looks at."""
    broken = ~probed.logits.isfinite().all(dim=1) & rule.needs.logits
    for name in rule.needs.layers:
        broken = broken | not_finite(probed[name]).to(broken.device)
    return broken
