"""NACDetector: fits a rule on a network and a loader, scores, decides, and is saved to files."""

from __future__ import annotations

import math
import threading
import warnings
from dataclasses import replace
from functools import partial
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence, Union

import torch
from torch import Tensor, nn

from nac_openood.core.layer_config import whole_number
from nac_openood.core.pvalues import ALPHA, PValues
from nac_openood.core.reading import BatchReadings, Reading, broken_error, double, not_finite
from nac_openood.core.rule import Rule, rule_named
from nac_openood.detector import batches as data
from nac_openood.detector import config, decisions, display, outcomes
from nac_openood.detector.batches import Batch
from nac_openood.detector.decisions import FalseAlarms, Selection
from nac_openood.detector.drift import Drift, DriftMonitor, dataset_drift
from nac_openood.detector.outcomes import Explanation, Images, ScoredBatch, Scores, Verdicts
from nac_openood.detector.readings import Reader, Readings, fit_rule, on_cpu
from nac_openood.detector.store import SHAPE, CorrectCount, FitSummary, StoredDetector
from nac_openood.distributed import all_gather, world
from nac_openood.errors import FileError, NACError, NotFittedError, ProbeError
from nac_openood.files import PathLike
from nac_openood.network.architectures import Layer
from nac_openood.network.checks import overlap, sample_hashes
from nac_openood.network.fingerprint import Watch, difference, identity
from nac_openood.network.inputs import NamedOutput, checked_autocast, named_output, sample_shape
from nac_openood.network.replica import kept_random_state, unwrap

#: Held while `partial_fit` or `calibrate` changes a rule, so that threads take turns.
_RULE_LOCK = threading.RLock()


class NACDetector:
    """Neuron Activation Coverage on top of any classifier.

    Args:
        net: a network that returns logits `[batch, classes]`. It is never changed.
        layers: `"auto"` finds the layers of any classifier by running it on the first batch. Or a
            list of layer names; a preset of the paper's NAC (`"cifar10"`, `"cifar100"`,
            `"imagenet200"`, `"imagenet"`); or a mapping of layer names to `LayerConfig`. A name is
            an alias of a known architecture (`avgpool`, `layer3`, `block11`, ...) or any dotted
            module path.
        rule: how readings become a score, one of `nac_openood.core.RULES`. None takes NAC+
            (`"nac_plus"`), or the paper's NAC (`"nac"`) if `layers` is a preset or has
            `LayerConfig`, which are settings of NAC.
        fast: fold BatchNorm into convolutions and, on CPUs, use the memory layout that suits
            them. The same results up to rounding, clearly faster on CPUs.
        autocast: `torch.bfloat16` or `torch.float16` runs the network under `torch.autocast`, for
            fitting as well as scoring; files keep it. None runs it in its own precision, also
            where the caller is inside `torch.autocast`.
        output: which of several outputs of the network are the logits: a number or a name; files
            keep it. None takes `logits` of a dict or an object, or the first one.

    Attributes:
        layers: the settings of each layer, by name.
        rule_: the fitted rule.
        fit_summary_: what it was fitted on.
        threshold_: the decision threshold, once calibrated; None if it differs by class.
        pvalues_: converts scores to p-values, once calibrated.
        classes_: names of the network's classes, kept in the file; empty unless you set them.
        notes_: anything else to keep in the file, as strings by name.

    Examples:
        >>> det = NACDetector(net).fit(train_loader).calibrate(val_loader)
        >>> det.p_value(images)  # small = unlike the training data
        >>> paper = NACDetector(net, layers="imagenet").fit(train_loader)
    """

    def __init__(
        self,
        net: nn.Module,
        layers: config.LayerChoice = config.AUTO,
        *,
        rule: Optional[str] = None,
        fast: bool = False,
        autocast: Optional[torch.dtype] = None,
        output: Union[int, str, None] = None,
    ) -> None:
        if isinstance(unwrap(net), torch.jit.ScriptModule):  # `unwrap` raises if it is no network
            raise ProbeError(
                "TorchScript runs outside of Python, so its layers cannot be read. Pass the "
                "network that it was made from, or load its file by "
                "nac_openood.sources.networks.network_of, which rebuilds it."
            )
        net = named_output(net, output)
        rule = config.default_rule(layers) if rule is None else rule
        self.net, self.rule, self.fast = net, rule, config.checked_switch("fast", fast)
        self.autocast = checked_autocast(autocast)
        kind = rule_named(rule)
        settings = config.layer_settings(net, layers, kind)
        find = partial(config.automatic_settings, net, kind)
        self._reader = Reader(net, kind, settings, find, fast=fast, autocast=autocast)
        self._warned = False  # that inputs are unlike those of the fit
        self._watch: Optional[Watch] = None  # of the network that the rule was fitted on
        self.rule_: Optional[Rule] = None
        self.fit_summary_: Optional[FitSummary] = None
        self.threshold_: Optional[float] = None
        self.pvalues_: Optional[PValues] = None
        self.classes_: tuple[str, ...] = ()
        self.notes_: dict[str, str] = {}

    @classmethod
    def from_rule(
        cls,
        net: nn.Module,
        rule: Rule,
        *,
        fast: bool = False,
        autocast: Optional[torch.dtype] = None,
    ) -> NACDetector:
        """Make a fitted detector from a rule that was fitted on the same network."""
        detector = cls(net, rule.layers, rule=rule.name, fast=fast, autocast=autocast)
        rule.check()
        detector._accept(rule, FitSummary(rule.n_samples), Watch(net))
        return detector

    def __repr__(self) -> str:
        kind, net = rule_named(self.rule), unwrap(self.net)
        summary = self.fit_summary_
        limit = None if self.threshold_ is None else f"score < {self.threshold_:.4g} is out"
        lines = {
            "layers": ", ".join(self.layers) or "found on the first batch",
            "fitted": "not yet: call fit(loader)" if summary is None else f"on {summary}",
            "calibrated": decisions.calibration_text(self.pvalues_) if summary else None,
            "threshold": limit if summary else None,
        }
        title = f"NACDetector: {kind.title or kind.name} on {type(net).__name__}"
        return display.described(title, lines)

    @property
    def layers(self) -> dict[str, Any]:
        """The settings of each layer, by name; empty before automatic layers are found."""
        return self._reader.layers

    @property
    def locations(self) -> Mapping[str, Layer]:
        """Where in the network each layer is; empty before automatic layers are found."""
        return dict(self._reader.locations)

    def prepare(self, x: Any) -> None:
        """Find automatic layers on a batch, as the first pass does by itself.

        Processes that must get exactly the same results must begin with the same batch.
        """
        self._reader.prepare(x)

    # -- fitting ---------------------------------------------------------------------------

    def fit(
        self,
        loader: Iterable[Any],
        n_samples: data.SampleCount = data.DEFAULT_SIZE,
        *,
        seed: int = data.AUTHORS_SEED,
        progress: Optional[bool] = None,
    ) -> NACDetector:
        """Fit the rule on in-distribution training data.

        Args:
            loader: batches as `(x, y)` tuples, OpenOOD dicts `{'data': x, 'label': y}`, Hugging
                Face encodings with `labels`, or `x` alone, under the test transform. `x` is as in
                `score`. A `DataLoader` over an indexable dataset is only read where needed.
            n_samples: size of the subset, class-balanced where labels exist (`n // classes` of
                each, drawn as the authors draw them). "auto" takes 1,000, or 20 per class if that
                is more, and everything where the samples cannot be indexed (streams, lists of
                batches). None uses everything.
            seed: random seed of the subset.
            progress: whether to show a progress bar; None shows one on a terminal.
        """
        seed = whole_number("`seed`", seed, 0, 2**32 - 1)
        right = CorrectCount()
        batches = data.fitting_batches(self.net, loader, n_samples, "NAC fit", progress, seed)
        rule: Optional[Rule] = None
        watch = Watch(self.net)
        summary, n_classes = FitSummary(0), 0

        def update(readings: BatchReadings, batch: Batch) -> None:
            nonlocal rule, summary, n_classes
            _check_unchanged(watch, self._reader.structure)
            if rule is None:
                self._warn_if_doubtful(batch.data, readings)
            summary += FitSummary.of_batch(batch)
            n_classes = readings.logits.shape[1]
            rule = rule or self._new_rule()
            _check_labeled(rule, batch)
            rule.start_at(batch.start)
            rule.update(readings, batch.label)
            if batch.label is not None:
                right.add(readings.logits.argmax(dim=1), batch.label)

        with kept_random_state():
            for _ in self._reader.map("fit", batches, update):
                pass
        rule = rule or self._new_rule()  # in a process without a batch
        if world().connected:
            rule.join(all_gather("counts", rule.shard()))
        rule.check()
        parts = all_gather("summary", (replace(summary, n_right=right.total()), n_classes))
        summary = sum((part for part, _ in parts), FitSummary(0))
        self._accept(rule, summary, watch)
        shape = sample_shape(self._reader.sample)
        if shape:
            self.notes_[SHAPE] = shape
        data.warn_if_uneven(summary.class_counts, max(n for _, n in parts), n_samples)
        rule.warn_if_few()
        outcomes.warn_if_saturated(rule)
        return self

    def partial_fit(self, batch: Any) -> NACDetector:
        """Add one batch of in-distribution training data to what the detector was fitted on.

        Calling it batch after batch gives exactly what `fit` gives on a loader of these batches. It
        can also continue after `fit`, `merge` or `load`. It uses every sample, and does not warn
        about missing classes or saturated layers. The detector must be calibrated again.

        Args:
            batch: one item of what `fit` calls a loader: `(x, y)`, a dict, or `x` alone. Automatic
                layers are found on the first one.

        Raises:
            NACError: the batch has NaN or Inf readings, or labels that are not classes of the
                network. Nothing of it was counted.
        """
        new, watch = data.as_batch(batch), self._watch or Watch(self.net)
        with kept_random_state():
            readings = self._reader.read(new.data)
            _check_unchanged(watch, self._reader.structure)
            if self.rule_ is None:
                self._warn_if_doubtful(new.data, readings)
        with _RULE_LOCK:
            rule = self.rule_ or self._new_rule()
            data.check_labels(new.label, readings.logits.shape[1])
            _check_labeled(rule, new)
            used = [readings[name] for name in rule.needs.layers]
            if rule.needs.logits:
                used.append(Reading(readings.logits))
            broken = int(not_finite(*used).sum())
            if broken:
                of = f"{new.size} samples of this batch"
                raise broken_error(broken, of, then="; nothing of it was counted")
            rule.update(readings, new.label)
            self._accept(rule, self._summary + FitSummary.of_batch(new), self._watch or watch)
        return self

    def fit_readings(self, readings: Mapping[str, Reading]) -> NACDetector:
        """Like `fit`, from `Readings` or a dict `layer -> (activation, gradient)`."""
        parts: Iterable[Mapping[str, Reading]] = [readings]
        if isinstance(readings, Readings):
            readings.check_network(self.net)
            readings.check_labels("fitting")
            parts = readings.batches()
        rule = fit_rule(self._new_rule(), parts)
        self._accept(rule, FitSummary(rule.n_samples), Watch(self.net))
        return self

    def merge(self, other: NACDetector) -> NACDetector:
        """Add what another detector was fitted on, e.g. another shard of the training data.

        Both must have the same network, rule, layers and settings. The order of shards does not
        matter. The detector must be calibrated again.
        """
        if not isinstance(other, NACDetector):
            raise NACError(f"expected another NACDetector, got {type(other).__name__}.")
        if other is self:
            raise NACError("cannot merge a detector with itself: its samples would count twice.")
        rule, watch, other_rule = self._fitted(), self._watched(certain=True), other._fitted()
        if (other.rule, other.autocast) != (self.rule, self.autocast):
            raise NACError(
                f"cannot merge a detector of rule '{self.rule}' and autocast={self.autocast} with "
                f"one of rule '{other.rule}' and autocast={other.autocast}."
            )
        differs = difference(watch.fingerprint, other._watched().fingerprint)
        if differs:
            raise NACError(f"cannot merge: the other detector is of another network: {differs}.")
        same = overlap(other._summary.hashes, self._summary.hashes)
        if same:
            warnings.warn(
                f"{same} samples of the other detector are samples of this one, too, and count "
                "twice from now on. Merge fits on different parts of the training data.",
                stacklevel=2,
            )
        rule.merge(other_rule)
        self._accept(rule, self._summary + other._summary, watch)
        return self

    def _new_rule(self) -> Rule:
        if not self.layers:
            raise NotFittedError(
                "`layers='auto'` finds layers by running the network: call fit or read_loader "
                "first, or name the layers."
            )
        return rule_named(self.rule)(self.layers)

    def _accept(self, rule: Rule, summary: FitSummary, watch: Watch) -> None:
        self.rule_, self.fit_summary_, self._watch = rule, summary, watch
        self._warned = False
        self.threshold_ = self.pvalues_ = None  # they belong to the previous rule

    def _warn_if_doubtful(self, x: Any, readings: BatchReadings) -> None:
        for doubt in self._reader.doubts(x, readings.logits):
            warnings.warn(
                f"{doubt}. See docs/checks.md for what that means for scores.",
                stacklevel=4,
            )

    def _warn_if_unlike(self, x: Any) -> None:
        """Warn once if a batch is far from what the rule was fitted on."""
        fitted = None if self._warned else self._summary.inputs
        how = fitted.unlike(x) if fitted else ""
        if how:
            self._warned = True
            warnings.warn(
                f"this batch is unlike the data that the detector was fitted on: {how}. If it is "
                "normalized or resized in another way, its scores mean nothing.",
                stacklevel=4,
            )

    @property
    def _summary(self) -> FitSummary:
        return self.fit_summary_ or FitSummary(0)

    def _fitted(self) -> Rule:
        if self.rule_ is None:
            raise NotFittedError("this NACDetector is not fitted: call fit first.")
        return self.rule_

    def _watched(self, *, certain: bool = False) -> Watch:
        """What watches the network that the rule was fitted on, if that has not changed."""
        watch = self._watch = self._watch or Watch(self.net)  # none if somebody has set `rule_`
        _check_unchanged(watch, certain=certain)
        return watch

    def _read(self, x: Any) -> BatchReadings:
        """The readings of a batch by the network that the rule was fitted on."""
        self._fitted()
        readings = self._reader.read(x)
        _check_unchanged(self._watch or self._watched(), self._reader.structure)
        self._warn_if_unlike(x)
        return readings

    # -- scoring ---------------------------------------------------------------------------

    def score(self, x: Any, *, nonfinite: str = "raise") -> Tensor:
        """Score a batch, `[batch]`; higher = more in-distribution. NAC's scores lie in [0, 1].

        Args:
            x: what the network takes: a tensor `[batch, ...]`, a tuple of several (`net(*x)`), or
                a dict or Hugging Face encoding (`net(**x)`); moved to the network's device.
            nonfinite: what to do with samples whose readings are NaN or Inf: "raise" an error, or
                "nan" to score them NaN and warn with their number.
        """
        score = self._fitted().score(self._read(x))
        outcomes.report_nonfinite(score, nonfinite)
        return score

    def score_readings(self, readings: Mapping[str, Reading]) -> Tensor:
        """Like `score`, from `Readings` or a dict `layer -> (activation, gradient)`."""
        if isinstance(readings, Readings):
            readings.check_network(self.net)
            self._watched()
        return self._fitted().score(readings)

    def score_loader(
        self, loader: Iterable[Any], *, progress: Optional[bool] = None, nonfinite: str = "raise"
    ) -> Scores:
        """Score a whole dataset; the result has the labels if the loader yields them."""
        with kept_random_state():
            found = ScoredBatch.joined(self._score_batches("NAC score", loader, progress))
        score = self._fitted().combine(found.parts)
        outcomes.report_nonfinite(score, nonfinite)
        by_layer = {name: part.numpy() for name, part in found.parts.items()}
        return Scores(score.numpy(), found.prediction.numpy(), found.label.numpy(), by_layer)

    def _score_batches(
        self,
        step: str,
        loader: Iterable[Any],
        progress: Optional[bool],
        hashes: Optional[list[int]] = None,
    ) -> Iterator[ScoredBatch]:
        rule, batches = self._fitted(), data.load_batches(loader, step, progress)
        watch = self._watched()

        def score(read: BatchReadings, batch: Batch) -> ScoredBatch:
            _check_unchanged(watch, self._reader.structure)
            self._warn_if_unlike(batch.data)
            if hashes is not None:
                data.check_labels(batch.label, read.logits.shape[1], "the calibration data: ")
                hashes.extend(sample_hashes(batch.data))
            return outcomes.score_batch(rule, read, batch.labels())

        return self._reader.map(step, batches, score)

    def read_loader(
        self,
        loader: Iterable[Any],
        n_samples: Optional[int] = None,
        *,
        save_to: Optional[PathLike] = None,
        in_distribution: bool = False,
        progress: Optional[bool] = None,
    ) -> Readings:
        """Read a whole dataset once, to fit, score or search without the network afterwards.

        Args:
            loader: as in `NACDetector.fit`.
            n_samples: read the subset that `fit` would be fitted on; None reads everything.
            save_to: a file that the readings are written to batch by batch and memory-mapped from,
                so that they need not fit in memory.
            in_distribution: whether labels must be classes of the network, as `fit` checks them.
            progress: whether to show a progress bar; None shows one on a terminal.
        """
        samples: Iterable[Batch] = data.load_batches(loader, "NAC read", progress)
        if in_distribution or n_samples is not None:
            samples = data.fitting_batches(self.net, loader, n_samples, "NAC read", progress)
        network = identity(self.net)

        def of_pass(read: BatchReadings, batch: Batch) -> Readings:
            return Readings.of_pass(read, batch.labels(), network)

        with kept_random_state():
            parts = on_cpu(self._reader.map("read", samples, of_pass))
            if save_to is not None:
                return Readings.save_parts(save_to, parts)
            return Readings.concatenate(list(parts))

    # -- deciding --------------------------------------------------------------------------

    def calibrate(
        self,
        loader: Iterable[Any],
        tpr: float = 1 - ALPHA,
        *,
        confidence: Optional[float] = None,
        per_class: bool = False,
        progress: Optional[bool] = None,
    ) -> NACDetector:
        """Calibrate on held-out in-distribution data, for decisions and p-values.

        `guarantee` says what they promise then, and `docs/guarantees.md` why.

        Args:
            loader: batches of ID validation data that were not used for fitting or training.
            tpr: the share of new ID data that `predict` calls in-distribution, at least.
            confidence: None makes promises that hold on average over calibration sets; a number
                such as 0.9 makes them for this set, with this probability.
            per_class: whether to compare a sample only with those of the same predicted class, so
                that the promises hold for every class.
            progress: whether to show a progress bar; None shows one on a terminal.
        """
        self._calibrate(loader, tpr, confidence, per_class, progress=progress)
        return self

    def _calibrate(
        self, loader: Iterable[Any], *how: Any, progress: Optional[bool] = None
    ) -> ScoredBatch:
        """Calibrate, and return the scores of the data."""
        with _RULE_LOCK, kept_random_state():
            self._watched(certain=True)
            hashes: list[int] = []
            batches = self._score_batches("calibrate", loader, progress, hashes)
            self.pvalues_, scored = decisions.calibrate_rule(self._fitted(), batches, *how)
            self.threshold_ = self.pvalues_.threshold
        doubt, distinct = "", len(set(hashes))
        if same := overlap(hashes, self._summary.hashes):
            doubt = (
                f"{same} calibration samples are samples that the detector was fitted on. New ones "
                "will cause more false alarms than promised: calibrate on other in-distribution "
                "data."
            )
        elif 2 * distinct <= len(hashes):
            doubt = (
                f"only {distinct} of {len(hashes)} calibration samples are different, so p-values "
                "are too small. Does each worker of the loader yield all samples?"
            )
        if doubt:
            warnings.warn(doubt, stacklevel=4)
        return scored

    @property
    def calibrated_(self) -> bool:
        """Whether `calibrate` was called; p-values and threshold are then based on its data."""
        return self.pvalues_ is not None or self.threshold_ is not None

    def guarantee(self) -> str:
        """What the decisions of this detector promise, in words."""
        return decisions.guarantee(self.pvalues_, self.threshold_)

    def p_value(self, x: Any) -> Tensor:
        """How unusual each sample is, `[batch]`.

        At most a share `p` of new in-distribution data falls at or below `p`, on average over
        calibration sets.

        Needs `calibrate`. For a rule that holds out training samples (NAC+) it is optional, with a
        warning; see `calibrated_`.
        """
        p_values, read = self._p_values(), self._read(x)
        score = self._fitted().score(read)
        outcomes.report_nonfinite(score, "raise")
        return p_values(score, read.logits.argmax(dim=1))

    def judge(self, x: Any) -> Verdicts:
        """Class, confidence, score and p-value of each sample, from one pass.

        Samples whose readings are NaN or Inf have no p-value and count as out-of-distribution.

        Args:
            x: samples `[batch, ...]`.
        """
        p_values, read = self._p_values(), self._read(x)
        confidence, prediction = double(read.logits).softmax(dim=1).max(dim=1)
        score = self._fitted().score(read)
        found = prediction, confidence, score, p_values(score, prediction)
        verdicts = Verdicts(*(tensor.cpu() for tensor in found))
        verdicts.alpha, verdicts.classes, verdicts.images = p_values.alpha, self.classes_, Images(x)
        return verdicts

    def predict(self, x: Any) -> Tensor:
        """True = in-distribution, bool `[batch]`. NaN or Inf readings are not in-distribution."""
        limit = self.threshold_
        if isinstance(limit, str) or limit != limit:
            raise NACError(f"`threshold_` must be a number, got {limit!r}.")
        p_values = self._p_values() if limit in (None, -math.inf) else self.pvalues_
        read = self._read(x)
        score = self._fitted().score(read)
        outcomes.report_nonfinite(score, "nan")
        if limit is not None and limit != -math.inf:  # also where you have set it
            return score >= limit
        assert p_values is not None
        p_values.warn_if_never(p_values.alpha)
        return p_values.accepts(score, read.logits.argmax(dim=1))

    def explain(self, x: Any, *, top: int = 5) -> list[Explanation]:
        """Why each sample of a batch has its score.

        Args:
            x: as in `score`.
            top: how many neurons to name per layer, least covered first.
        """
        found = outcomes.explanations(self._fitted(), self._read(x), self.pvalues_, top)
        found.images = Images(x)
        return found

    def false_alarms(
        self,
        loader: Iterable[Any],
        levels: Sequence[float] = decisions.LEVELS,
        *,
        progress: Optional[bool] = None,
    ) -> list[FalseAlarms]:
        """How often in-distribution data has a p-value at or below each level.

        Args:
            loader: batches of ID test data that were not used for fitting or calibration.
            levels: p-values.
            progress: whether to show a progress bar; None shows one on a terminal.

        Returns:
            The measured rate at each level, and the range that chance explains.
        """
        p_values, _, classes, p = self._score_all(loader, progress, "raise")
        return decisions.false_alarm_rates(p, levels, p_values, classes)

    def select(
        self, loader: Iterable[Any], fdr: float = 0.1, *, progress: Optional[bool] = None
    ) -> Selection:
        """Select the out-of-distribution samples of a dataset, with few false alarms among them.

        Unlike `predict`, which accepts a share of false alarms among all in-distribution samples,
        this limits their share among the alarms, by the procedure of Benjamini and Hochberg.

        Args:
            loader: batches, as in `score_loader`, or one batch as a tensor.
            fdr: on average, at most this share of the selected samples is in-distribution.
            progress: whether to show a progress bar; None shows one on a terminal.
        """
        p_values, _, _, p = self._score_all(loader, progress)
        return decisions.select(p, fdr, p_values)

    def drift(
        self, loader: Iterable[Any], *, seed: int = 0, progress: Optional[bool] = None
    ) -> Drift:
        """Test whether a dataset, as a whole, is like the calibration data.

        Args:
            loader: batches, as in `score_loader`, or one batch as a tensor. At least two samples.
            seed: of the permutations.
            progress: whether to show a progress bar; None shows one on a terminal.
        """
        p_values, score, classes, _ = self._score_all(loader, progress)
        return dataset_drift(p_values, score, classes, seed=seed)

    def monitor(self, alpha: float = 0.01, *, seed: int = 0) -> DriftMonitor:
        """Watch a stream of inputs: raise an alarm if they are unlike the calibration data.

        Args:
            alpha: the probability of a false alarm, ever, while nothing changes.
            seed: of the random numbers that break ties.

        Examples:
            >>> monitor = detector.monitor()
            >>> for images in stream:
            ...     if monitor.update(images):
            ...         print(monitor)
        """
        return DriftMonitor(self._p_values().scores, alpha=alpha, seed=seed, score=self._nan_scores)

    def _nan_scores(self, x: Any) -> Tensor:
        """Scores of a batch; NaN where readings are NaN or Inf."""
        return self._fitted().score(self._read(x))

    def _score_all(
        self, loader: Iterable[Any], progress: Optional[bool], nonfinite: str = "nan"
    ) -> tuple[PValues, Tensor, Tensor, Tensor]:
        """`PValues`, and scores, predicted classes and p-values of a dataset, `[samples]` each."""
        p_values, batches = self._p_values(), [loader] if isinstance(loader, Tensor) else loader
        found = self.score_loader(batches, progress=progress, nonfinite=nonfinite)
        score, classes = torch.from_numpy(found.score), torch.from_numpy(found.prediction)
        return p_values, score, classes, p_values(score, classes)

    def _p_values(self) -> PValues:
        if self.pvalues_ is not None:
            return self.pvalues_
        scores = self._fitted().held_out_scores()
        if scores is None:
            raise NotFittedError(
                "this detector is not calibrated: call calibrate(loader) with held-out "
                "in-distribution samples first."
            )
        return PValues(scores, exact=False)

    # -- files -----------------------------------------------------------------------------

    def save(self, path: PathLike) -> None:
        """Write the fitted rule, its threshold and the network's fingerprint, atomically."""
        if not all(isinstance(text, str) for text in self.notes_.values()):
            raise NACError(f"`notes_` must be strings by name, got {self.notes_}.")
        StoredDetector(
            self._fitted(),
            self._watched(certain=True).fingerprint,
            self._summary,
            self.threshold_,
            self.pvalues_,
            tuple(self.classes_),
            dict(self.notes_),
            self.autocast,
            self.net.output if isinstance(self.net, NamedOutput) else None,
        ).save(path)

    @classmethod
    def load(
        cls,
        path: PathLike,
        net: nn.Module,
        *,
        layers: Optional[config.LayerChoice] = None,
        fast: bool = False,
    ) -> NACDetector:
        """Load a file that `save` wrote, for the network that it was fitted on.

        Args:
            path: the file.
            net: the network, with the same weights.
            layers: the layers that the file must have been fitted with; None and "auto" accept
                any.
            fast: as in the constructor.
        """
        fitted = StoredDetector.load(path, net)
        rule, net = fitted.rule, named_output(net, fitted.output)
        detector = cls.from_rule(net, rule, fast=fast, autocast=fitted.autocast)
        detector.fit_summary_ = fitted.summary
        wanted = {} if layers is None else config.layer_settings(net, layers, type(rule))
        if wanted and wanted != rule.layers:
            raise FileError(
                f"{path} was fitted with {rule.layers}, not {wanted}. Fit again, or load it "
                "without `layers`."
            )
        detector.threshold_, detector.pvalues_ = fitted.threshold, fitted.pvalues
        detector.classes_, detector.notes_ = fitted.classes, dict(fitted.notes)
        return detector

    def export(
        self, path: PathLike, example: Optional[Tensor] = None, *, alpha: float = outcomes.ALPHA
    ) -> None:
        """Write the network and this detector as one program that runs without this package.

        Its input `image` is a batch of one sample or more; its outputs are `logits` `[batch,
        classes]`, `score` and `p_value` float64 `[batch]`, and `decision` bool `[batch]`: True
        where a sample is out-of-distribution, that is, where its p-value is at most `alpha` or NaN.

        Args:
            path: ends in `.onnx` (for ONNX Runtime) or `.pt2` (for `torch.export.load`).
            example: a batch `[batch, ...]` of the kind that the program will get; None uses a
                sample that this detector has read, if it has read any since it was made.
            alpha: at most this share of in-distribution samples will be called
                out-of-distribution.

        Raises:
            NotFittedError: the detector is not fitted, or not calibrated on enough samples.
            NACError: the rule needs gradients, or the network cannot be exported.
        """
        from nac_openood.detector.export import export

        export(self, path, self._reader.sample if example is None else example, alpha=alpha)


def _check_unchanged(
    watch: Watch, structure: Optional[list[int]] = None, *, certain: bool = False
) -> None:
    changed = watch.change(structure, certain=certain)
    if changed:
        raise NACError(
            f"the network has changed since this detector was fitted: {changed}. Its counts are of "
            "the network as it was: fit again, or load the weights that it was fitted on."
        )


def _check_labeled(rule: Rule, batch: Batch) -> None:
    if rule.needs.labels and batch.label is None:
        raise NACError(
            f"rule '{rule.name}' is fitted class by class, but this loader yields no labels. Let "
            "it yield (x, y)."
        )
