"""NACDetector: where a network, a loader and a rule meet."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence, TypeVar

import torch
from torch import Tensor, nn

from nac_openood.core.pvalues import MIN_SAMPLES, PValues
from nac_openood.core.ranking import threshold_at
from nac_openood.core.reading import Probed, Reading
from nac_openood.core.rule import Rule
from nac_openood.detector import store
from nac_openood.detector.batches import Batch
from nac_openood.detector.choose import LayerChoice, layer_settings
from nac_openood.detector.dealing import dealt
from nac_openood.detector.export import export
from nac_openood.detector.false_alarms import LEVELS, FalseAlarms, false_alarm_rates
from nac_openood.detector.fitting import calibrated
from nac_openood.detector.fitting_reader import FittingReader
from nac_openood.detector.outcomes import Explanation, Scores, explanations, report_nonfinite
from nac_openood.detector.readings import Readings
from nac_openood.detector.store import FitSummary, Fitted
from nac_openood.detector.verdicts import ALPHA, Verdicts, verdicts
from nac_openood.errors import NACError, NotFittedError
from nac_openood.files import PathLike
from nac_openood.network.fingerprint import fingerprint
from nac_openood.network.random_state import kept_random_state

_T = TypeVar("_T")
#: Makes something of the readings and labels of a batch.
_Note = Callable[[Probed, Tensor], _T]


class NACDetector(FittingReader):
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
        autocast: `torch.bfloat16` or `torch.float16` runs the network under `torch.autocast`, for
            fitting as well as scoring; files keep it. None runs it in its own precision, also
            where the caller is inside `torch.autocast`.

    Attributes:
        layers: the settings of each layer, by name.
        rule_: the fitted rule.
        fit_summary_: what it was fitted on.
        threshold_: the decision threshold, once calibrated.
        pvalues_: from scores to p-values, once calibrated.
        classes_: names of the network's classes, kept in the file; empty unless you set them.

    Examples:
        >>> det = NACDetector(net, layers="imagenet").fit(train_loader, n_samples=1000)
        >>> det.score(images)                    # higher = more in-distribution
        >>> det.calibrate(val_loader).predict(images)
    """

    classes_: tuple[str, ...] = ()

    @cached_property
    def notes_(self) -> dict[str, str]:
        """Anything else to keep in the file, as strings by name."""
        return {}

    @classmethod
    def from_rule(
        cls,
        net: nn.Module,
        rule: Rule,
        *,
        fast: bool = False,
        autocast: Optional[torch.dtype] = None,
    ) -> NACDetector:
        """A fitted detector from a rule that was fitted earlier on the same network."""
        detector = cls(net, rule.layers, rule=rule.name, fast=fast, autocast=autocast)
        rule.check()
        detector._accept(rule, FitSummary(rule.n_samples))
        return detector

    # -- scoring ---------------------------------------------------------------------------

    def score(self, x: Any, *, nonfinite: str = "raise") -> Tensor:
        """Score a batch, `[batch]`; higher = more in-distribution. NAC's scores lie in [0, 1].

        Args:
            x: what the network takes: a tensor `[batch, ...]`, a tuple of several (`net(*x)`), or
                a dict or Hugging Face encoding (`net(**x)`); moved to the network's device.
            nonfinite: what to do with samples whose readings are NaN or Inf: "raise" an error, or
                "nan" to score them NaN and warn with their number.
        """
        score = self._fitted().score(self._probe(x))
        report_nonfinite(score, nonfinite)
        return score

    def score_readings(self, readings: Mapping[str, Reading]) -> Tensor:
        """Like `score`, from `Readings` or a dict `layer -> (activation, gradient)`."""
        if isinstance(readings, Readings):
            readings.check_network(self.net)
        return self._fitted().score(readings)

    def score_loader(
        self,
        loader: Iterable[Any],
        *,
        progress: Optional[bool] = None,
        nonfinite: str = "raise",
    ) -> Scores:
        """Score a whole dataset; labels come along where the loader has them."""
        with kept_random_state():
            batches = list(self._parts("NAC score", loader, progress, _class_and_label))
        if not batches:
            raise NACError("the loader yielded no batch: there is nothing to score.")
        parts, answers = zip(*batches)
        prediction, label = (torch.cat(column).cpu().numpy() for column in zip(*answers))
        by_layer = {name: torch.cat([each[name] for each in parts]).cpu() for name in parts[0]}
        score = self._fitted().combine(by_layer)
        report_nonfinite(score, nonfinite)
        arrays = {name: part.numpy() for name, part in by_layer.items()}
        return Scores(score.numpy(), prediction, label, arrays)

    def _parts(
        self, step: str, loader: Iterable[Any], progress: Optional[bool], note: _Note[_T]
    ) -> Iterator[tuple[dict[str, Tensor], _T]]:
        """The parts of each batch's scores, and what `note` makes of its readings and labels."""
        rule = self._fitted()

        def work(batch: Batch) -> tuple[dict[str, Tensor], _T]:
            probed = self._probe(batch.data)
            return rule.parts(probed), note(probed, batch.labels())

        return self._pass(step, dealt(loader, step, progress), work)

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
        self._calibrate(loader, tpr, lambda probed, label: None, progress)
        return self

    def _calibrate(
        self, loader: Iterable[Any], tpr: float, note: _Note[_T], progress: Optional[bool] = None
    ) -> list[_T]:
        """Like `calibrate`; returns what `note` makes of the readings and labels of each batch."""
        notes = []

        def parts() -> Iterator[dict[str, Tensor]]:
            for found, noted in self._parts("calibrate", loader, progress, note):
                notes.append(noted)
                yield found

        with kept_random_state():
            self.threshold_, self.pvalues_ = calibrated(self._fitted(), parts(), tpr)
        return notes

    def p_value(self, x: Any) -> Tensor:
        """How unusual each sample is, `[batch]`.

        About a share `p` of new in-distribution data falls at or below `p`.

        Needs `calibrate`, with at least `nac_openood.core.pvalues.MIN_SAMPLES` samples. A rule that
        sets training samples aside (NAC+) does without, with a warning; see `calibrated_`.
        """
        return self._p_values()(self.score(x))

    def judge(self, x: Any) -> Verdicts:
        """Class, confidence, score and p-value of each sample, from one pass.

        Samples whose readings are NaN or Inf have no p-value and count as out-of-distribution.

        Args:
            x: samples `[batch, ...]`.
        """
        p_values = self._p_values()
        return verdicts(self._probe(x), self._fitted(), p_values)

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

    def explain(self, x: Any, *, top: int = 5) -> list[Explanation]:
        """Why each sample of a batch has its score.

        Args:
            x: as in `score`.
            top: how many neurons to name per layer, least covered first.
        """
        return explanations(self._fitted(), self._probe(x), self.pvalues_, top)

    def predict(self, x: Any) -> Tensor:
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
        fitted = Fitted(
            self._fitted(), self.fit_summary_ or FitSummary(0), self.threshold_, self.pvalues_,
            tuple(self.classes_), dict(self.notes_), self.autocast,
        )  # fmt: skip
        store.save(path, fitted, fingerprint(self.net))

    def export(
        self, path: PathLike, example: Optional[Tensor] = None, *, alpha: float = ALPHA
    ) -> None:
        """Write the network and this detector as one program that runs without this package.

        Its input `image` is a batch of any size; its outputs are `logits` `[batch, classes]`,
        `score` and `p_value` float64 `[batch]`, and `decision` bool `[batch]`: True where a sample
        is out-of-distribution, that is, where its p-value is at most `alpha` or NaN.

        Args:
            path: ends in `.onnx` (for ONNX Runtime) or `.pt2` (for `torch.export.load`).
            example: a batch `[batch, ...]` of the kind that the program will be given; None takes
                a sample of what this detector has read, if it has read any since it was made.
            alpha: about this share of in-distribution samples will be called
                out-of-distribution.

        Raises:
            NotFittedError: the detector is not fitted, or not calibrated on enough samples.
            NACError: the rule needs gradients, or the network cannot be exported.
        """
        export(self, path, self._sample if example is None else example, alpha=alpha)

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
            layers: if given, what the file must have been fitted with; "auto" fits any file.
            fast: as in the constructor.
        """
        fitted = store.load(path, net)
        detector = cls.from_rule(net, fitted.rule, fast=fast, autocast=fitted.autocast)
        if layers is not None:
            wanted = layer_settings(net, layers, type(fitted.rule))
            if wanted:  # automatic layers would have to be found by running the network
                store.refuse_other_layers(path, fitted.rule, wanted)
        detector.fit_summary_ = fitted.summary
        detector.threshold_, detector.pvalues_ = fitted.threshold, fitted.pvalues
        detector.classes_, detector.notes_ = fitted.classes, dict(fitted.notes)
        return detector


def _class_and_label(probed: Probed, label: Tensor) -> tuple[Tensor, Tensor]:
    return probed.logits.argmax(dim=1), label
