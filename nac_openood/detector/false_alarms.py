"""How often new in-distribution data is called unusual: whether p-values mean what they say."""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple, Sequence

import numpy as np

from nac_openood.errors import NACError

LEVELS = (0.01, 0.05, 0.10)


class FalseAlarms(NamedTuple):
    """The false-alarm rate at one level.

    Args:
        level: an alarm is a p-value at or below it.
        rate: the share of in-distribution samples with an alarm; about `level` if the p-values are
            right.
        low: lower end of the 95 % confidence interval (Clopper and Pearson) of the rate.
        high: its upper end. It reflects the size of this dataset, not that of the calibration set.
        n_samples: how many samples were measured.
    """

    level: float
    rate: float
    low: float
    high: float
    n_samples: int

    def __str__(self) -> str:
        return (
            f"p <= {self.level:g}: {self.rate:.1%} of {self.n_samples} samples "
            f"(95 % interval {self.low:.1%} to {self.high:.1%})"
        )


def false_alarm_rates(p_values: Any, levels: Sequence[float] = LEVELS) -> list[FalseAlarms]:
    """False-alarm rates from the p-values `[samples]` of in-distribution data."""
    p = np.asarray(p_values, dtype=np.float64).ravel()
    wrong = [level for level in levels if not isinstance(level, Real) or not 0 < level < 1]
    if wrong:
        raise NACError(f"`levels` must lie between 0 and 1, got {wrong}.")
    if not len(p):
        raise NACError("expected p-values of at least one sample, got none.")
    return [_at(p, level) for level in levels]


def binomial_interval(count: int, n: int) -> tuple[float, float]:
    """The 95 % confidence interval (Clopper and Pearson) of a share, given `count` of `n`."""
    from scipy.stats import beta

    low = float(beta.ppf(0.025, count, n - count + 1)) if count else 0.0
    high = float(beta.ppf(0.975, count + 1, n - count)) if count < n else 1.0
    return low, high


def _at(p: np.ndarray, level: float) -> FalseAlarms:
    # a sample without a p-value (NaN readings) is an alarm, as in `NACDetector.predict`
    alarms, n = int((~(p > level)).sum()), len(p)
    return FalseAlarms(level, alarms / n, *binomial_interval(alarms, n), n)
