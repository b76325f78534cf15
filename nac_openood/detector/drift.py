"""Whether new data is like the calibration data: a whole dataset, or a stream of inputs.

Both compare new scores with those of the calibration samples, and are valid for any network and any
distribution: as long as nothing has changed, every order of all these samples is equally likely.
"""

from __future__ import annotations

import bisect
import math
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor

from nac_openood import tensor_files
from nac_openood.core.layer_config import whole_number
from nac_openood.core.metrics import Z_99, Interval, auroc_intervals
from nac_openood.core.pvalues import PValues
from nac_openood.detector.outcomes import checked_alpha
from nac_openood.errors import NACError
from nac_openood.files import PathLike

# -- a dataset -----------------------------------------------------------------------------

#: The most and the fewest permutations per test. In between, their number is limited so that at
#: most `_VALUES` values are drawn.
_MOST, _FEWEST, _VALUES = 9999, 199, 10**8


class Drift(NamedTuple):
    """Whether a dataset, as a whole, is like the calibration data.

    Attributes:
        p_value: of the hypothesis that it is: twice the smaller of the next two, at most 1.
        p_scores: of a permutation test of the scores.
        p_classes: of a permutation test of the predicted classes; None if they are not known.
        auroc: the probability that a calibration sample scores higher than one of the dataset, with
            its 99 % interval; 0.5 if they are alike.
        reference: scores of the calibration samples, `[samples]`.
        scores: of the dataset, `[samples]`; NaN where readings are NaN or Inf.
        p_values: of the dataset, `[samples]`; uniform if it is like the calibration data.
        classes: how often each class was predicted, for the calibration samples and the dataset,
            int64 `[2, classes]`; empty if that is not known.
    """

    p_value: float
    p_scores: float
    p_classes: Optional[float]
    auroc: Interval
    reference: np.ndarray
    scores: np.ndarray
    p_values: np.ndarray
    classes: np.ndarray

    def __repr__(self) -> str:
        value, low, high = self.auroc
        classes = "" if self.p_classes is None else f", predicted classes {self.p_classes:.2g}"
        return (
            f"p = {self.p_value:.2g} (scores {self.p_scores:.2g}{classes}) under the hypothesis "
            f"that {len(self.scores)} samples are like the {len(self.reference)} calibration "
            f"samples; one of the latter scores higher with a probability of {value:.3f} "
            f"({low:.3f} to {high:.3f}; 0.5 without drift)"
        )


def dataset_drift(pvalues: PValues, scores: Tensor, classes: Tensor, *, seed: int = 0) -> Drift:
    """Test whether a dataset is like the calibration data.

    Args:
        pvalues: of a calibrated detector.
        scores: of the dataset, `[samples]`.
        classes: its predicted classes, int64 `[samples]`.
        seed: of the permutations.
    """
    reference, n = pvalues.scores, len(scores)
    if n < 2 or len(reference) < 2:
        raise NACError(
            f"expected at least 2 samples and 2 calibration samples, got {n} and {len(reference)}."
        )
    draw = np.random.default_rng(whole_number("`seed`", seed, 0))
    comparable = scores.double().nan_to_num(-math.inf, math.inf, -math.inf)
    p_scores = _scores_test(reference.numpy(), comparable.numpy(), draw)
    counts, p_classes = np.zeros((2, 0), dtype=np.int64), None
    if pvalues.classes is not None:
        both = pvalues.classes, classes.cpu()
        most = 1 + max(int(found.max()) for found in both)
        counts = np.stack([torch.bincount(found, minlength=most).numpy() for found in both])
        p_classes = _classes_test(counts, draw)
    p_value = p_scores if p_classes is None else min(1.0, 2 * min(p_scores, p_classes))
    auroc = _effect(reference, comparable)
    arrays = reference.numpy(), scores.numpy(), pvalues(scores, classes).numpy()
    return Drift(p_value, p_scores, p_classes, auroc, *arrays, counts)


def _scores_test(reference: np.ndarray, scores: np.ndarray, draw: np.random.Generator) -> float:
    """The p-value of a permutation test of ranks; the lowest and the highest count most."""
    pooled = np.concatenate([reference, scores])
    ordered = np.sort(pooled)
    # equal scores have the same rank, in the middle of theirs
    rank = np.searchsorted(ordered, pooled) + np.searchsorted(ordered, pooled, side="right") + 1
    share = rank / (2 * len(pooled) + 2)
    # logarithms of the rank from below and from above, less their means; Hotelling's statistic
    values = np.log(np.stack([share, 1 - share], axis=1))
    values -= values.mean(axis=0)
    precision = np.linalg.pinv(np.cov(values.T), hermitian=True)

    def statistic(rows: Any) -> float:
        total = values[rows].sum(axis=0)
        return float(total @ precision @ total)

    # of the smaller set: the sums of both are the same up to the sign
    n, m = len(reference), len(scores)
    measured = statistic(slice(n) if n < m else slice(n, None))
    measured *= 1 - 1e-9  # equal up to rounding counts as reached
    times = max(_FEWEST, min(_MOST, _VALUES // min(n, m)))
    drawn = (draw.choice(n + m, min(n, m), replace=False, shuffle=False) for _ in range(times))
    return (1 + sum(statistic(rows) >= measured for rows in drawn)) / (times + 1)


def _effect(reference: Tensor, scores: Tensor) -> Interval:
    """The AUROC with a 99 % interval that holds for few samples, and for separated ones.

    DeLong's interval would have no width for these, so it is widened to include Newcombe's (2006),
    which contains all values that differ by at most 2.58 of their own standard errors.
    """
    ((value, low, high),), _ = auroc_intervals(reference[None], scores[None])
    n, m, a = len(reference), len(scores), np.linspace(0, 1, 10_001)
    more = ((n + m) / 2 - 1) * ((1 - a) / (2 - a) + a / (1 + a))
    within = a[(a - value) ** 2 <= Z_99**2 * a * (1 - a) * (1 + more) / (n * m)]
    return Interval(value, float(within.min(initial=low)), float(within.max(initial=high)))


def _classes_test(counts: np.ndarray, draw: np.random.Generator) -> float:
    """The p-value of a permutation test of the chi-squared statistic of counts `[2, classes]`."""
    total, sizes = counts.sum(axis=0), counts.sum(axis=1)
    used = total > 0
    expected = (total * sizes[1] / sizes.sum())[used]

    def statistic(of_data: np.ndarray) -> Any:
        # given the totals, the deviations of both rows are the same up to the sign
        return ((of_data[..., used] - expected) ** 2 / expected).sum(axis=-1)

    drawn = draw.multivariate_hypergeometric(total, sizes[1], size=_MOST, method="marginals")
    reached = statistic(drawn) >= statistic(counts[1]) * (1 - 1e-9)
    return float((1 + reached.sum()) / (_MOST + 1))


# -- a stream ------------------------------------------------------------------------------

_KIND, _VERSION = "nac_openood monitor", 1
#: Exponents of bets `e * p**(e - 1)` on small p-values, and of the same bets on large ones. A small
#: `e` bets on a few very unusual inputs, one near 1 on many slightly unusual ones.
_BETS = np.array([0.25, 0.5, 0.7, 0.85, 0.95])
#: After so many inputs, the reference is the calibration data alone again.
_EPOCH = 10_000
#: Points of the history that are kept; when there are more, every second one is dropped.
_HISTORY = 5000


class DriftMonitor:
    """A conformal test martingale: evidence that inputs are unlike the calibration data.

    Every input is ranked among the calibration samples and the inputs before it (ties are broken at
    random). While all of them are exchangeable, these p-values are independent and uniform, and the
    capital of a player who bets against that is a martingale: by Ville's inequality it ever reaches
    `1 / alpha` with probability `alpha` at most, however long the stream and wherever one looks.
    That would not hold for p-values against a fixed calibration set, which are not independent.

    After every `epoch` inputs the reference is the calibration set alone again, and a new player
    begins, the k-th with the capital `1 / (k (k + 1))`: so memory stays bounded, slow drift does
    not become the reference, and the probability of any false alarm is still `alpha`.

    Args:
        reference: scores of calibration samples that had no part in making the score, `[samples]`.
        alpha: the probability of a false alarm, ever.
        seed: of the random numbers that break ties.
        epoch: number of inputs after which the reference is the calibration set alone again.
        score: scores a batch of inputs, for `update`; `NACDetector.monitor` sets it.

    Attributes:
        n_inputs: how many inputs were seen.
        alarm_at: the number of the input at which the evidence reached `1 / alpha`; None before.
        history: the number of inputs and the evidence (logarithm, base 10), from time to time.
    """

    def __init__(
        self,
        reference: Any,
        *,
        alpha: float = 0.01,
        seed: int = 0,
        epoch: int = _EPOCH,
        score: Optional[Callable[[Any], Tensor]] = None,
    ) -> None:
        self._reference = np.sort(np.asarray(reference, dtype=np.float64).ravel())
        self.alpha, self.epoch = checked_alpha(alpha), epoch
        self.seed = whole_number("`seed`", seed, 0)
        self._score = score
        self.n_inputs = 0
        self.alarm_at: Optional[int] = None
        self.history: list[tuple[int, float]] = []
        self._every = 1
        self._begin()

    def _begin(self) -> None:
        """Begin an epoch."""
        self._seen: list[float] = self._reference.tolist()
        # above 0 and at most 1; by the number of the input, so that batches make no difference
        draw = np.random.default_rng((self.seed, self.n_inputs // self.epoch))
        self._ties = 1 - draw.random(self.epoch)
        self._logs = np.full(2 * len(_BETS), -math.inf)  # logarithms of the capital of each bet

    @property
    def log10_evidence(self) -> float:
        """The logarithm (base 10) of the evidence; an alarm is `-log10(alpha)` or more."""
        players = (max(1, self.n_inputs) - 1) // self.epoch + 1
        reserve = math.log(_reserve(self.n_inputs - (players - 1) * self.epoch))
        capital = float(np.logaddexp.reduce([*self._logs, reserve]))
        return (capital - math.log(players * (players + 1))) / math.log(10)

    @property
    def alarm(self) -> bool:
        """Whether the evidence has ever reached `1 / alpha`."""
        return self.alarm_at is not None

    def update(self, x: Any) -> bool:
        """Add a batch of inputs `[batch, ...]` in order; returns whether there is an alarm."""
        if self._score is None:
            raise NACError("this monitor has no detector: pass scores to `update_scores`.")
        return self.update_scores(self._score(x))

    def update_scores(self, scores: Any) -> bool:
        """Add the scores `[batch]` of inputs in order; NaN counts as the lowest."""
        values = np.asarray(torch.as_tensor(scores).detach().cpu(), dtype=np.float64).ravel()
        for value in np.where(np.isnan(values), -math.inf, values).tolist():
            self._add(value)
        return self.alarm

    def _add(self, score: float) -> None:
        position = self.n_inputs % self.epoch
        if position == 0:
            self._begin()
        lower, not_higher = bisect.bisect_left(self._seen, score), bisect.bisect(self._seen, score)
        p = (lower + float(self._ties[position]) * (not_higher - lower + 1)) / (len(self._seen) + 1)
        self._seen.insert(not_higher, score)
        stake = (_reserve(position) - _reserve(position + 1)) / len(self._logs)
        logs = np.array([[math.log(p)], [math.log(max(1 - p, 1e-16))]])
        won = (np.log(_BETS) + (_BETS - 1) * logs).ravel()
        self._logs = np.logaddexp(self._logs, math.log(stake)) + won
        self.n_inputs += 1
        evidence = self.log10_evidence
        if self.alarm_at is None and evidence >= -math.log10(self.alpha):
            self.alarm_at = self.n_inputs
        if self.n_inputs % self._every == 0:
            self.history.append((self.n_inputs, evidence))
            if len(self.history) > _HISTORY:
                self.history, self._every = self.history[1::2], 2 * self._every

    def __repr__(self) -> str:
        state = "no alarm" if self.alarm_at is None else f"ALARM at input {self.alarm_at}"
        limit = -math.log10(self.alpha)
        return (
            f"{state} after {self.n_inputs} inputs: the evidence is 10^{self.log10_evidence:.1f}, "
            f"an alarm is at 10^{limit:.1f} (a false one has the probability {self.alpha:g}, ever)"
        )

    # -- files ---------------------------------------------------------------------------------

    def save(self, path: PathLike) -> None:
        """Write the state to a file, atomically, to continue later with `load`."""
        tensors = {
            "reference": torch.from_numpy(self._reference),
            "seen": torch.tensor(self._seen, dtype=torch.float64),
            "logs": torch.from_numpy(self._logs),
            "history": torch.tensor(self.history, dtype=torch.float64).reshape(-1, 2),
        }
        names = ("alpha", "seed", "epoch", "n_inputs", "alarm_at", "_every")
        about = {name.strip("_"): getattr(self, name) for name in names}
        tensor_files.write_tensors(path, _KIND, _VERSION, tensors, about)

    def load(self, path: PathLike) -> DriftMonitor:
        """Continue from a file that `save` wrote, of the same detector and settings."""
        tensors, about = tensor_files.read_tensors(path, _KIND, _VERSION)
        same = np.array_equal(tensors["reference"].numpy(), self._reference)
        settings = about["alpha"], about["seed"], about["epoch"]
        if not same or settings != (self.alpha, self.seed, self.epoch):
            raise NACError(
                f"{path} is of another detector, of other calibration data, or of other settings "
                f"(alpha, seed, epoch) = {settings}. Delete it to begin again."
            )
        self.n_inputs, self.alarm_at = about["n_inputs"], about["alarm_at"]
        self._begin()
        self._every = about["every"]
        self._seen, self._logs = tensors["seen"].tolist(), tensors["logs"].numpy().copy()
        self.history = [(int(n), value) for n, value in tensors["history"].tolist()]
        return self


def _reserve(t: int) -> float:
    """The part of a player's capital that was not bet on the first `t` inputs.

    It decreases slowly, so that there is capital left to bet on a change at any time.
    """
    return 1 / math.log(t + math.e)
