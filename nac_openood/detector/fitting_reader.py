"""FittingReader: what is read of a network, counted by a rule."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Optional, TypeVar

from nac_openood.core.pvalues import PValues
from nac_openood.core.reading import Reading
from nac_openood.core.rule import Rule
from nac_openood.detector.batches import Batch, as_batch
from nac_openood.detector.fitting import (
    add_batch,
    added_up,
    fitted_on,
    refuse_unlabeled,
    warn_if_saturated,
)
from nac_openood.detector.fitting_set import FittingSet
from nac_openood.detector.reader import LayerReader
from nac_openood.detector.readings import Readings
from nac_openood.detector.store import FitSummary
from nac_openood.detector.subset import AUTHORS_SEED
from nac_openood.errors import NACError, NotFittedError
from nac_openood.network.fingerprint import difference, fingerprint
from nac_openood.network.random_state import kept_random_state

_F = TypeVar("_F", bound="FittingReader")


class FittingReader(LayerReader):
    """Fits a rule on a network. Its arguments are those of `NACDetector`."""

    rule_: Optional[Rule] = None
    fit_summary_: Optional[FitSummary] = None
    threshold_: Optional[float] = None
    pvalues_: Optional[PValues] = None

    def fit(
        self: _F,
        loader: Iterable[Any],
        n_samples: Optional[int] = None,
        *,
        seed: int = AUTHORS_SEED,
        progress: Optional[bool] = None,
    ) -> _F:
        """Fit the rule on in-distribution training data.

        Args:
            loader: batches as `(x, y)` tuples, OpenOOD dicts `{'data': x, 'label': y}`, Hugging
                Face encodings with `labels`, or `x` alone, under the test transform. `x` is as in
                `score`. A `DataLoader` over an indexable dataset is only read where needed.
            n_samples: size of the subset, class-balanced where labels exist (`n // classes` of
                each, drawn as the authors draw them); None takes everything.
            seed: random seed of that draw.
            progress: whether to show a progress bar; None shows one on a terminal.
        """
        samples = FittingSet(
            self.net, loader, n_samples, seed=seed, title="NAC fit", progress=progress
        )
        rule: Optional[Rule] = None

        def count(batch: Batch) -> None:
            nonlocal rule
            rule = rule or self._unfitted()
            refuse_unlabeled(rule, batch)
            rule.start_at(batch.start)
            rule.update(self._probe(batch.data), batch.label)

        with kept_random_state():
            for _ in self._pass("fit", samples, count):
                pass
        rule = added_up(rule or self._unfitted())  # there is none in a process without a batch
        rule.check()
        self._accept(rule, FitSummary(rule.n_samples, samples.class_counts()))
        samples.warn_if_uneven()
        warn_if_saturated(rule)
        return self

    def partial_fit(self: _F, batch: Any) -> _F:
        """Add one batch of in-distribution training data to what the detector was fitted on.

        Batch after batch, it gives what `fit` gives on a loader of these batches, to the bit, and
        goes on after `fit`, `merge` or `load`. It takes every sample, and does not warn about
        missing classes or saturated layers. The threshold must be chosen again.

        Args:
            batch: one item of what `fit` calls a loader: `(x, y)`, a dict, or `x` alone. Automatic
                layers are found on the first one.

        Raises:
            NACError: the batch has NaN or Inf readings, or labels that are no classes of the
                network. Nothing of it was counted.
        """
        given = as_batch(batch)
        with kept_random_state():
            probed = self._probe(given.data)
            rule = self.rule_ or self._unfitted()
            added = add_batch(rule, given, probed)
        self._accept(rule, _summary(self) + added)
        return self

    def fit_readings(self: _F, readings: Mapping[str, Reading]) -> _F:
        """Like `fit`, from `Readings` or a dict `layer -> (activation, gradient)`."""
        rule = self._unfitted()
        parts: Iterable[Mapping[str, Reading]] = [readings]
        if isinstance(readings, Readings):
            readings.check_network(self.net)
            readings.check_labels("fitting")
            parts = readings.batches()
        fitted_on(rule, parts)
        self._accept(rule, FitSummary(rule.n_samples))
        return self

    def merge(self: _F, other: _F) -> _F:
        """Add what another detector was fitted on, e.g. another shard of the training data.

        Both must have the same network, rule, layers and settings. The order of shards does not
        matter. The threshold must be chosen again.
        """
        if other is self or not isinstance(other, FittingReader):
            told = "itself: samples would count twice" if other is self else type(other).__name__
            raise NACError(f"expected another detector to merge with this one, got {told}.")
        theirs, mine = other._fitted(), self._fitted()
        if other.rule != self.rule:
            raise NACError(f"cannot merge detectors of rules '{self.rule}' and '{other.rule}'.")
        if other.autocast != self.autocast:
            raise NACError(
                f"cannot merge detectors fitted with autocast={self.autocast} and "
                f"autocast={other.autocast}: their readings are rounded differently."
            )
        differs = other.net is not self.net and difference(fingerprint(self.net), other.net)
        if differs:
            raise NACError(
                f"cannot merge with a detector of another network: {differs}. Fit both on the same "
                "one."
            )
        mine.merge(theirs)
        self._accept(mine, _summary(self) + _summary(other))
        return self

    def _accept(self, rule: Rule, summary: FitSummary) -> None:
        self.rule_, self.fit_summary_ = rule, summary
        self.threshold_ = self.pvalues_ = None  # they belong to what they were made with

    def _fitted(self) -> Rule:
        if self.rule_ is None:
            raise NotFittedError("this NACDetector is not fitted: call fit first.")
        return self.rule_


def _summary(detector: FittingReader) -> FitSummary:
    return detector.fit_summary_ or FitSummary(0)
