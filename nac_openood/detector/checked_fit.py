"""Fit, calibrate and measure a detector in one go, and report what looks suspicious.

Shards can do the same independently, on any machines and at any time: a shard counts its share of
the fitting batches and reads its share of the validation and test batches. Merging them gives
exactly the detector that one process would have fitted.
"""

from __future__ import annotations

import math
import warnings
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import torch
from torch import Tensor

from nac_openood import files, tensor_files
from nac_openood.core.metrics import auroc
from nac_openood.core.pvalues import ALPHA, PValues
from nac_openood.core.rule import Rule
from nac_openood.detector import decisions, outcomes
from nac_openood.detector.batches import DEFAULT_SIZE, SampleCount, check_labels
from nac_openood.detector.decisions import FalseAlarms
from nac_openood.detector.detector import NACDetector
from nac_openood.detector.outcomes import ScoredBatch
from nac_openood.detector.readings import Readings
from nac_openood.detector.store import FitSummary, StoredDetector
from nac_openood.distributed import ShardResult, as_shard, ordered_shards
from nac_openood.errors import FileError, NACError
from nac_openood.records import from_values

#: A class with fewer fitting samples is reported.
_FEW_SAMPLES = 10
#: Another order of the classes is suggested if it raises the accuracy by more than this.
_BETTER = 0.3
#: The accuracy on validation data is reported if it is lower than that on the fitting data by
#: more than this, beyond three standard errors of the difference.
_FAR_BELOW = 0.25
#: The files in the folder of a shard.
NOTES_FILE, _COUNTS, _VAL, _TEST = "shard.json", "counts.nac", "val.safetensors", "test.safetensors"
_FORMAT = 1


@dataclass(frozen=True)
class FitReport:
    """The outcome of a fit, with warnings.

    Args:
        n_fitted: number of fitting samples.
        n_classes: number of the network's classes.
        accuracy: the accuracy of the network on validation data.
        n_val: number of validation samples.
        alpha: the false-alarm rate that is wanted.
        threshold: scores below it have p-values of at most `alpha`.
        false_alarms: measured on test data; None without any.
        warnings: what looks suspicious, a sentence or two each.
        train_accuracy: the accuracy on the fitting samples; None without labels.
        mistakes: how the score separates wrong predictions on validation data from right ones;
            None without any.
        doubt: the warning that the accuracy on validation data is far below that on training data,
            which means that the detector should not be used; None if it is not far below.
    """

    n_fitted: int
    n_classes: int
    accuracy: float
    n_val: int
    alpha: float
    threshold: float
    false_alarms: Optional[FalseAlarms]
    warnings: tuple[str, ...]
    train_accuracy: Optional[float] = None
    mistakes: Optional[Mistakes] = None
    doubt: Optional[str] = None


class Mistakes(NamedTuple):
    """Wrong predictions: how many, the share with p-values of at most `alpha`, and the AUROC."""

    n: int
    found: float
    auroc: float

    def __str__(self) -> str:
        wrong = "wrong prediction" if self.n == 1 else "wrong predictions"
        return f"finds {self.found:.0%} of {self.n} {wrong} (AUROC {100 * self.auroc:.1f})"


def fit_checked(
    detector: NACDetector,
    train: Iterable[Any],
    val: Iterable[Any],
    test: Optional[Iterable[Any]] = None,
    *,
    n_samples: SampleCount = DEFAULT_SIZE,
    n_classes: Optional[int] = None,
    alpha: float = ALPHA,
) -> FitReport:
    """Fit and calibrate a detector, and measure its false alarms and the network's accuracy.

    Args:
        detector: not fitted yet.
        train: batches of training data, under the test transform.
        val: batches of labeled ID validation data, to calibrate on.
        test: batches of other ID data, to measure false alarms on.
        n_samples: as in `NACDetector.fit`.
        n_classes: number of classes in the data, if it is known.
        alpha: the false-alarm rate that is wanted.

    Raises:
        NACError: the data does not fit the network, or is too little to calibrate on.
    """
    outcomes.checked_alpha(alpha)
    with _recorded() as messages:
        detector.fit(train, n_samples)
        scored = detector._calibrate(val, 1 - alpha)
        tested = None if test is None else torch.from_numpy(detector.score_loader(test).score)
    assert detector.pvalues_ is not None
    rule, summary, pvalues = detector._fitted(), detector._summary, detector.pvalues_
    return _report(rule, summary, pvalues, scored, tested, messages, n_classes)


# -- shards --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShardNotes:
    """Which shard this is, and what all shards of a fit have in common.

    Args:
        number: number of the shard, from 1 on.
        of: number of shards.
        batch_size: batch size of validation and test data.
        alpha: the false-alarm rate that is wanted.
        n_classes: number of classes in the data, if it is known.
        sizes: number of samples that are used from each dataset, by role.
    """

    number: int
    of: int
    batch_size: int
    alpha: float
    n_classes: Optional[int]
    sizes: Mapping[str, int]


def write_shard(
    folder: files.PathLike,
    notes: ShardNotes,
    detector: NACDetector,
    train: Iterable[Any],
    val: Iterable[Any],
    test: Optional[Iterable[Any]] = None,
    *,
    n_samples: SampleCount = DEFAULT_SIZE,
) -> None:
    """Compute one shard of a fit and write it to a folder, for `merge_shards`.

    Args:
        folder: the folder, which is created.
        notes: which shard it is.
        detector: not fitted yet; its classes and notes are kept.
        train: batches of training data, in a fixed order.
        val: batches of labeled ID validation data.
        test: batches of other ID data, to measure false alarms on.
        n_samples: as in `NACDetector.fit`.
    """
    target = files.make_folder(folder)
    files.remove(target / NOTES_FILE)  # written last, it marks the shard as complete
    fewest = math.ceil(min(notes.sizes.values()) / notes.batch_size)
    if notes.of > fewest:
        raise NACError(
            f"{notes.of} shards cannot share {fewest} batches. Use fewer shards, or a smaller "
            "`batch_size`."
        )
    with as_shard(notes.number - 1, notes.of), _recorded():  # the merge warns
        detector.fit(train, n_samples).save(target / _COUNTS)
        for name, loader in ((_VAL, val), (_TEST, test)):
            if loader is not None:
                detector.read_loader(loader, save_to=target / name, in_distribution=True)
    checksums = {name: tensor_files.checksum_in(target / name) for name in (_COUNTS, _VAL, _TEST)}
    right = None if detector.fit_summary_ is None else detector.fit_summary_.n_right
    document = {"notes": asdict(notes), "checksums": checksums, "right": right}
    files.write_document(target / NOTES_FILE, _FORMAT, document)


def merge_shards(folders: Sequence[files.PathLike]) -> tuple[StoredDetector, FitReport]:
    """Merge all shards of a fit, in any order, and calibrate the result.

    Returns:
        The content of the detector's file, and the report of the fit.

    Raises:
        NACError: a shard is missing, unfinished or damaged, or of another fit.
    """
    shards = ordered_shards(_read_shard(Path(folder)) for folder in folders)
    notes: ShardNotes = shards[0].run[0]
    first, *others = (shard.content for shard in shards)
    rule, summary = first.rule, first.summary
    for other in others:
        rule.merge(other.rule)
        summary = summary + other.summary
    rule.check()
    paths = [shard.path for shard in shards]
    val, test = (_batches(paths, name, notes.batch_size) for name in (_VAL, _TEST))
    batches = (outcomes.score_batch(rule, read, read.label) for read in val)
    with _recorded() as messages:
        outcomes.warn_if_saturated(rule)
        pvalues, scored = decisions.calibrate_rule(rule, batches, 1 - notes.alpha)
    tested = torch.cat([rule.score(batch) for batch in test]) if test else None
    report = _report(rule, summary, pvalues, scored, tested, messages, notes.n_classes)
    found = replace(first, summary=summary, threshold=pvalues.threshold, pvalues=pvalues)
    return found, report


def _read_shard(folder: Path) -> ShardResult:
    notes, checksums, right = files.read_document(
        folder / NOTES_FILE, _FORMAT,
        lambda found: (
            from_values(ShardNotes, found["notes"], "notes"),
            found["checksums"],
            found.get("right"),
        ),
        missing=f"{folder} holds no finished shard: there is no {NOTES_FILE}",
        again="Run this shard again",
    )  # fmt: skip
    for name in (_COUNTS, _VAL, _TEST):  # the counts of another shard would be added twice
        if tensor_files.checksum_in(folder / name) != checksums.get(name):
            raise FileError(f"{folder / name} is not the file of this shard. Run this shard again.")
    fitted = StoredDetector.load(folder / _COUNTS)
    same = replace(fitted, rule=None, summary=FitSummary(0))  # type: ignore[arg-type]
    run = replace(notes, number=1), same, fitted.rule.name, fitted.rule.layers
    fitted = replace(fitted, summary=replace(fitted.summary, n_right=right))
    return ShardResult(folder, notes.number, notes.of, run, fitted)


def _batches(folders: Sequence[Path], name: str, size: int) -> list[Readings]:
    """The batches of a dataset from all shards, in the order in which one process reads them."""
    paths = [folder / name for folder in folders if (folder / name).is_file()]
    turns = zip_longest(*(Readings.load(path).batches(size) for path in paths))
    return [batch for batch in chain(*turns) if batch is not None]


# -- the report ----------------------------------------------------------------------------


@contextmanager
def _recorded() -> Iterator[list[str]]:
    """Collect the messages of warnings in a list, instead of showing them."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield messages
    messages.extend(str(entry.message) for entry in caught)


def _report(
    rule: Rule,
    summary: FitSummary,
    pvalues: PValues,
    scored: ScoredBatch,
    tested: Optional[Tensor],
    messages: Sequence[str],
    n_data_classes: Optional[int],
) -> FitReport:
    """The report of a fit.

    Args:
        rule: fitted and calibrated.
        summary: what was fitted on.
        pvalues: of the calibration.
        scored: validation data.
        tested: scores of test data; None without any.
        messages: warnings so far.
        n_data_classes: number of classes in the data, if it is known.
    """
    notes, prediction, label = list(messages), scored.prediction, scored.label
    n_classes, n_val = scored.n_classes, len(label)
    check_labels(label, n_classes)
    if n_data_classes not in (None, n_classes):
        notes.append(
            f"the data has {n_data_classes} classes and the network {n_classes}. Are these the "
            "images that it was trained on?"
        )
    counts = summary.class_counts.values()
    few = [count for count in counts if count < _FEW_SAMPLES]
    if few:
        notes.append(
            f"{len(few)} of {len(counts)} classes have fewer than {_FEW_SAMPLES} fitting samples, "
            f"as few as {min(few)}: add training images of these classes."
        )
    answers = np.zeros((n_classes, n_classes), dtype=int)
    np.add.at(answers, (label[label >= 0], prediction[label >= 0]), 1)
    accuracy, train_accuracy, doubt = int(np.trace(answers)) / n_val, None, None
    if summary.n_right is not None and counts:
        train_accuracy = summary.n_right / sum(counts)
        doubt = _lower_accuracy(accuracy, n_val, train_accuracy, sum(counts))
    doubts = [wrong := _wrong_answers(answers, n_val), doubt]
    doubt = f"{doubt} In particular, {wrong}" if doubt and wrong else doubt
    alarms, threshold = None, float(pvalues.limits[0])
    if tested is not None:
        outcomes.report_nonfinite(tested)
        (alarms,) = decisions.false_alarm_rates(pvalues(tested), [pvalues.alpha], pvalues)
        doubts.append(_unlikely_alarms(tested, alarms, threshold))
    notes += filter(None, doubts)
    mistakes = _mistakes(rule.combine(scored.parts), label, prediction, threshold)
    return FitReport(
        summary.n_samples, n_classes, accuracy, n_val, pvalues.alpha, threshold, alarms,
        tuple(dict.fromkeys(notes)), train_accuracy, mistakes, doubt,
    )  # fmt: skip


def _wrong_answers(answers: np.ndarray, n: int) -> Optional[str]:
    """A warning if predictions on `n` samples, counts `[classes, classes]`, look wrong."""
    from scipy.optimize import linear_sum_assignment

    right, chance = int(np.trace(answers)), answers.sum(axis=1).max() / n
    reordered = int(answers[linear_sum_assignment(answers, maximize=True)].sum())
    if reordered - right > _BETTER * n:
        return (
            f"the network is right on {right / n:.1%} of validation samples, but would be on "
            f"{reordered / n:.1%} if its classes had another order. Its classes and those of "
            "the data are probably numbered differently."
        )
    if decisions.binomial_interval(right, n)[0] <= chance:
        return (
            f"the network is right on {right / n:.1%} of validation samples, no better than "
            f"chance ({chance:.1%}). Check the weights, the transform and the labels."
        )
    return None


def _lower_accuracy(val: float, n_val: int, train: float, n_train: int) -> Optional[str]:
    """A warning if the accuracy on validation samples is far below that on training samples."""
    error = math.sqrt(train * (1 - train) / n_train + val * (1 - val) / n_val)
    if train - val - 3 * error <= _FAR_BELOW:
        return None
    return (
        f"the network is right on {val:.1%} of validation samples, far below the {train:.1%} of "
        f"training samples (standard error of the difference: {error:.1%}). Are both labeled "
        "alike, and made by the transform that the network was trained with?"
    )


def _unlikely_alarms(tested: Tensor, alarms: FalseAlarms, threshold: float) -> Optional[str]:
    """A warning if there are more or fewer false alarms on test data than chance explains."""
    low, high = alarms.expected
    # scores equal to the threshold are no alarms, and might have been
    if alarms.rate <= high and float((tested <= threshold).double().mean()) >= low:
        return None
    kind = "more" if alarms.rate > high else "fewer"
    return (
        f"{alarms.rate:.1%} of test samples are called out-of-distribution, clearly {kind} than "
        f"the {low:.1%} to {high:.1%} that chance explains: test and validation data are not alike."
    )


def _mistakes(
    score: Tensor, label: Tensor, prediction: Tensor, threshold: float
) -> Optional[Mistakes]:
    usable = (label >= 0) & score.isfinite()
    right, wrong = (score[usable & same] for same in (prediction == label, prediction != label))
    if not len(right) or not len(wrong):
        return None
    found = (wrong < threshold).double().mean()
    return Mistakes(len(wrong), float(found), float(auroc(right, wrong)))
