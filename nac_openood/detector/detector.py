"""NACDetector: where a network, a loader and a rule meet."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Optional, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from nac_openood.core.pvalues import MIN_SAMPLES, PValues
from nac_openood.core.reading import Reading
from nac_openood.core.rule import Rule
from nac_openood.detector import store
from nac_openood.detector.batches import AUTHORS_SEED, batches
from nac_openood.detector.choose import LayerChoice, layer_settings
from nac_openood.detector.false_alarms import LEVELS, FalseAlarms, false_alarm_rates
from nac_openood.detector.fitting import FittingSet, warn_if_saturated
from nac_openood.detector.outcomes import Explanation, Scores, explanations, report_nonfinite
from nac_openood.detector.reader import LayerReader
from nac_openood.detector.readings import Readings
from nac_openood.detector.store import FitSummary, Fitted
from nac_openood.detector.thresholds import threshold_at
from nac_openood.errors import NACError, NotFittedError
from nac_openood.files import PathLike
from nac_openood.network.random_state import kept_random_state
from nac_openood.progress import bar


class NACDetector(LayerReader):
    """Neuron Activation Coverage on top of any classifier.

    Args:
        net: a network that returns logits `[batch, classes]`. It is never changed.
        layers: a preset (`"cifar10"`, `"cifar100"`, `"imagenet"`), a list of layer names, or a
            mapping of layer names to `LayerConfig`. A name is an alias of a known architecture
            (`avgpool`, `layer3`, `block11`, ...) or any dotted module path. `"auto"` finds the
            layers of any classifier by running it on the first batch.
        rule: how readings become a score, one of `nac_openood.core.rules.RULES`.
        fast: fold BatchNorm into convolutions and, on CPUs, use the memory layout that suits
            them. The same numbers up to float rounding, in clearly less time on CPUs.

    Attributes:
        layers: the settings of each layer, by name.
        rule_: the fitted rule.
        fit_summary_: what it was fitted on.
        threshold_: the decision threshold, once calibrated.
        pvalues_: from scores to p-values, once calibrated.

    Example:
        >>> det = NACDetector(net, layers="imagenet").fit(train_loader, n_samples=1000)
        >>> det.score(images)                    # higher = more in-distribution
        >>> det.calibrate(val_loader).predict(images)
    """

    def __init__(
        self, net: nn.Module, layers: LayerChoice, *, rule: str = "nac", fast: bool = False
    ) -> None:
        super().__init__(net, layers, rule=rule, fast=fast)
        self.rule_: Optional[Rule] = None
        self.fit_summary_: Optional[FitSummary] = None
        self.threshold_: Optional[float] = None
        self.pvalues_: Optional[PValues] = None

    # -- fitting ---------------------------------------------------------------------------

    def fit(
        self,
        loader: Iterable[Any],
        n_samples: Optional[int] = None,
        *,
        seed: int = AUTHORS_SEED,
        progress: Optional[bool] = None,
    ) -> NACDetector:
        """Fit the rule on in-distribution training data.

        Args:
            loader: batches as OpenOOD dicts, `(x, y)` tuples or plain tensors, under the test
                transform. A `DataLoader` over an indexable dataset is only read where needed.
            n_samples: size of the subset, class-balanced where labels exist (`n // classes` of
                each, drawn as the authors draw them); None takes everything.
            seed: random seed of that draw.
            progress: whether to show a progress bar; None shows one on a terminal.
        """
        rule: Optional[Rule] = None
        samples = FittingSet(
            self.net, loader, n_samples, seed=seed, title="NAC fit", progress=progress
        )
        with kept_random_state():
            for batch in samples:
                rule = rule or self._unfitted(batch.data)
                if rule.needs.labels and batch.label is None:
                    raise NACError(
                        f"rule '{self.rule}' is fitted class by class, but this loader yields no "
                        "labels. Let it yield (x, y)."
                    )
                rule.update(self._probe(batch.data), batch.label)
        assert rule is not None  # a fitting set without samples raises
        rule.check()
        self._accept(rule, FitSummary(rule.n_samples, dict(sorted(samples.by_class.items()))))
        samples.warn_if_uneven()
        warn_if_saturated(rule)
        return self

    def fit_readings(self, readings: Mapping[str, Reading]) -> NACDetector:
        """Like `fit`, from `Readings` or a dict `layer -> (activation, gradient)`."""
        rule = self._unfitted()
        if isinstance(readings, Readings):
            readings.check_labels("fitting")
        for part in readings.batches() if isinstance(readings, Readings) else [readings]:
            rule.update(part, getattr(part, "label", None))
        rule.check()
        self._accept(rule, FitSummary(rule.n_samples))
        return self

    def merge(self, other: NACDetector) -> NACDetector:
        """Add what another detector was fitted on, e.g. another shard of the training data.

        Both must have the same rule, layers and settings. The threshold must be chosen again.
        """
        theirs, mine = other._fitted(), self._fitted()
        if other.rule != self.rule:
            raise NACError(f"cannot merge detectors of rules '{self.rule}' and '{other.rule}'.")
        mine.merge(theirs)
        self._accept(mine, _summary(self) + _summary(other))
        return self

    def _accept(self, rule: Rule, summary: FitSummary) -> None:
        self.rule_, self.fit_summary_ = rule, summary
        self.threshold_ = self.pvalues_ = None  # they belong to what they were made with

    @classmethod
    def from_rule(cls, net: nn.Module, rule: Rule, *, fast: bool = False) -> NACDetector:
        """A fitted detector from a rule that was fitted earlier on the same network."""
        detector = cls(net, rule.layers, rule=rule.name, fast=fast)
        rule.check()
        detector._accept(rule, FitSummary(rule.n_samples))
        return detector

    # -- scoring ---------------------------------------------------------------------------

    def score(self, x: Tensor, *, nonfinite: str = "raise") -> Tensor:
        """Score a batch, `[batch]`; higher = more in-distribution. NAC's scores lie in [0, 1].

        Args:
            x: samples `[batch, ...]`; moved to the network's device.
            nonfinite: what to do with samples whose readings are NaN or Inf: "raise" an error, or
                "nan" to score them NaN and warn with their number.
        """
        rule = self._fitted()
        score = rule.score(self._probe(x))
        report_nonfinite(int(score.isnan().sum()), score.shape[0], nonfinite)
        return score

    def score_readings(self, readings: Mapping[str, Reading]) -> Tensor:
        """Like `score`, from `Readings` or a dict `layer -> (activation, gradient)`."""
        return self._fitted().score(readings)

    def score_loader(
        self,
        loader: Iterable[Any],
        *,
        progress: Optional[bool] = None,
        nonfinite: str = "raise",
    ) -> Scores:
        """Score a whole dataset; labels come along where the loader has them."""
        rule = self._fitted()
        parts: dict[str, list[Tensor]] = {}
        predictions, labels = [], []
        with kept_random_state():
            for batch in batches(bar(loader, "NAC score", progress)):
                probed = self._probe(batch.data)
                for name, part in rule.parts(probed).items():
                    parts.setdefault(name, []).append(part)
                predictions.append(probed.logits.argmax(dim=1))
                labels.append(batch.labels())
        if not labels:
            raise NACError("the loader yielded no batch: there is nothing to score.")
        by_layer = {name: torch.cat(part).cpu() for name, part in parts.items()}
        score = rule.combine(by_layer).numpy()
        report_nonfinite(int(np.isnan(score).sum()), len(score), nonfinite)
        return Scores(
            score,
            torch.cat(predictions).cpu().numpy(),
            torch.cat(labels).numpy(),
            {name: part.numpy() for name, part in by_layer.items()},
        )

    # -- deciding --------------------------------------------------------------------------

    def calibrate(
        self, loader: Iterable[Any], tpr: float = 0.95, *, progress: Optional[bool] = None
    ) -> NACDetector:
        """Choose the threshold that keeps `tpr` of held-out in-distribution data.

        Args:
            loader: batches of ID validation data, which nothing was fitted on.
            tpr: the share of it that `predict` calls in-distribution.
            progress: whether to show a progress bar; None shows one on a terminal.
        """
        rule = self._fitted()
        with kept_random_state():
            probed = (
                self._probe(batch.data) for batch in batches(bar(loader, "calibrate", progress))
            )
            scores = rule.calibrate(probed).cpu()
        report_nonfinite(int(scores.isnan().sum()), len(scores), "raise")
        self.threshold_ = threshold_at(scores, tpr)
        self.pvalues_ = PValues(scores) if len(scores) >= MIN_SAMPLES else None
        return self

    def p_value(self, x: Tensor) -> Tensor:
        """How unusual each sample is, `[batch]`.

        About a share `p` of new in-distribution data falls at or below `p`.

        Needs `calibrate`, with at least `nac_openood.core.pvalues.MIN_SAMPLES` samples. A rule that
        sets training samples aside (NAC+) does without, with a warning; see `calibrated_`.
        """
        return self._p_values()(self.score(x))

    def false_alarms(
        self,
        loader: Iterable[Any],
        levels: Sequence[float] = LEVELS,
        *,
        progress: Optional[bool] = None,
    ) -> list[FalseAlarms]:
        """How often in-distribution data has a p-value at or below each level.

        Args:
            loader: batches of ID test data, which nothing was fitted or calibrated on.
            levels: p-values.
            progress: whether to show a progress bar; None shows one on a terminal.

        Returns:
            The measured rate at each level, with its confidence interval.
        """
        p_values = self._p_values()
        scores = self.score_loader(loader, progress=progress).score
        return false_alarm_rates(p_values(torch.from_numpy(scores)), levels)

    @property
    def calibrated_(self) -> bool:
        """Whether p-values and threshold rest on data that was given to `calibrate`."""
        return self.pvalues_ is not None or self.threshold_ is not None

    def _p_values(self) -> PValues:
        if self.pvalues_ is not None:
            return self.pvalues_
        set_aside = self._fitted().held_out_scores()
        if set_aside is None:
            raise NotFittedError(
                f"no p-values yet: call calibrate(loader) with at least {MIN_SAMPLES} held-out "
                "in-distribution samples first."
            )
        return PValues(set_aside)

    def explain(self, x: Tensor, *, top: int = 5) -> list[Explanation]:
        """Why each sample of a batch has its score.

        Args:
            x: samples `[batch, ...]`.
            top: how many neurons to name per layer, least covered first.
        """
        return explanations(self._fitted(), self._probe(x), self.pvalues_, top)

    def predict(self, x: Tensor) -> Tensor:
        """True = in-distribution, bool `[batch]`. NaN or Inf readings are not in-distribution."""
        threshold = self.threshold_
        if threshold is None:
            set_aside = self._fitted().held_out_scores()
            if set_aside is None:
                raise NotFittedError("no threshold yet: call calibrate(loader) first.")
            threshold = threshold_at(set_aside)
        return self.score(x, nonfinite="nan") >= threshold

    # -- files -----------------------------------------------------------------------------

    def save(self, path: PathLike) -> None:
        """Write the fitted rule, its threshold and the network's fingerprint, atomically."""
        store.save(
            path, Fitted(self._fitted(), _summary(self), self.threshold_, self.pvalues_), self.net
        )

    @classmethod
    def load(
        cls,
        path: PathLike,
        net: nn.Module,
        *,
        layers: Optional[LayerChoice] = None,
        fast: bool = False,
    ) -> NACDetector:
        """Read what `save` wrote, for the very network it was fitted on.

        Args:
            path: the file.
            net: the network, with the same weights.
            layers: if given, what the file must have been fitted with.
            fast: as in the constructor.
        """
        fitted = store.load(path, net)
        detector = cls.from_rule(net, fitted.rule, fast=fast)
        if layers is not None:
            wanted = layer_settings(net, layers, type(fitted.rule))
            store.refuse_other_layers(path, fitted.rule, wanted)
        detector.fit_summary_ = fitted.summary
        detector.threshold_, detector.pvalues_ = fitted.threshold, fitted.pvalues
        return detector

    def _fitted(self) -> Rule:
        if self.rule_ is None:
            raise NotFittedError("this NACDetector is not fitted: call fit first.")
        return self.rule_


def _summary(detector: NACDetector) -> FitSummary:
    return detector.fit_summary_ or FitSummary(0)
