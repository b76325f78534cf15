"""Fitting a rule on readings, calibrating it, and adding up what several processes counted."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Iterable, Mapping, Optional

from torch import Tensor

from nac_openood.core.pvalues import MIN_SAMPLES, PValues
from nac_openood.core.ranking import threshold_at
from nac_openood.core.reading import Probed, Reading, broken_error, not_finite
from nac_openood.core.rule import Rule
from nac_openood.detector.batches import Batch, check_labels
from nac_openood.detector.outcomes import report_nonfinite
from nac_openood.detector.store import FitSummary
from nac_openood.distributed import all_gather, all_sum, world
from nac_openood.errors import NACError


def fitted_on(rule: Rule, batches: Iterable[Mapping[str, Reading]]) -> Rule:
    """The rule, fitted on readings; `Readings` have the labels with them."""
    for batch in batches:
        rule.update(batch, getattr(batch, "label", None))
    rule.check()
    return rule


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
    looked_at = [probed[name] for name in rule.needs.layers]
    if rule.needs.logits:
        looked_at.append(Reading(probed.logits))
    broken = int(not_finite(*looked_at).sum())
    if broken:
        of = f"{batch.size} samples of this batch"
        raise broken_error(broken, of, then="; nothing of it was counted")
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


def calibrated(
    rule: Rule, parts: Iterable[Mapping[str, Tensor]], tpr: float
) -> tuple[float, Optional[PValues]]:
    """Calibrate a rule: the threshold, and p-values if there are enough samples for them.

    Args:
        rule: what was fitted.
        parts: what `rule.parts` gives for batches of calibration data, made one after the other.
        tpr: the share of that data that is at or above the threshold.
    """
    scores = rule.calibrate(parts).cpu()
    report_nonfinite(scores)
    return threshold_at(scores, tpr), PValues(scores) if len(scores) >= MIN_SAMPLES else None


def added_up(rule: Rule) -> Rule:
    """What the rule would be if this process had counted what all of them did."""
    if not world().connected:
        return rule
    samples = rule.kept_samples()
    rule.set_sums(all_sum("counts", rule.sums()))
    rule.set_kept_samples(all_gather("samples", samples))
    return rule


def warn_if_saturated(rule: Rule) -> None:
    """Warn when a layer gives nearly all samples the same score."""
    told = list(rule.saturated().values())
    if told:
        warnings.warn(
            f"{'; '.join(told)}. `nac_openood.advise` suggests settings, and rule='nac_plus' needs "
            "none.",
            UserWarning,
            stacklevel=3,
        )
