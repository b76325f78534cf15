"""A fit in shards that run on their own, on any machines and at any time, and are merged later.

A shard counts its share of the fitting batches and reads its share of the validation and test
batches. Merged, they are the detector that one process would have fitted, to the bit.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Iterable, Mapping, NamedTuple, Optional, Sequence

import torch

from nac_openood import files, tensor_files
from nac_openood.core.pvalues import PValues
from nac_openood.core.reading import logits_in
from nac_openood.core.rule import Rule
from nac_openood.detector import store
from nac_openood.detector.checked_fit import FitReport, count_answers, enough, recorded, report_of
from nac_openood.detector.detector import NACDetector
from nac_openood.detector.false_alarms import FalseAlarms, false_alarm_rates
from nac_openood.detector.fitting import calibrated, warn_if_saturated
from nac_openood.detector.outcomes import report_nonfinite
from nac_openood.detector.readings import Readings
from nac_openood.distributed import as_shard, check_shards
from nac_openood.errors import FileError, NACError
from nac_openood.files import is_file
from nac_openood.records import from_values

#: What lies in the folder of a shard.
NOTES_FILE, _COUNTS, _VAL, _TEST = "shard.json", "counts.nac", "val.safetensors", "test.safetensors"
_FILES = (_COUNTS, _VAL, _TEST)
_FORMAT = 1


@dataclass(frozen=True)
class ShardNotes:
    """Which shard this is, and what all shards of a fit have in common.

    Args:
        number: from 1 on.
        of: how many there are.
        batch_size: of validation and test data.
        alpha: the false-alarm rate that is wanted.
        n_classes: number of classes in the data, if it is known.
        sizes: number of samples that are used of each dataset, by its role.
    """

    number: int
    of: int
    batch_size: int
    alpha: float
    n_classes: Optional[int]
    sizes: Mapping[str, int]

    def __post_init__(self) -> None:
        counts = [self.number, self.of, self.batch_size, *self.sizes.values()]
        if min(counts) < 1 or self.number > self.of or not 0 < self.alpha < 1 or not self.sizes:
            raise NACError(f"there is no such shard: {self}")


def write_shard(
    folder: files.PathLike,
    notes: ShardNotes,
    detector: NACDetector,
    train: Iterable[Any],
    val: Iterable[Any],
    test: Optional[Iterable[Any]] = None,
    *,
    n_samples: Optional[int] = None,
    progress: Optional[bool] = None,
) -> None:
    """Do one share of a fit and write it to a folder, for `merge_shards`.

    Args:
        folder: is created.
        notes: which share it is.
        detector: not fitted yet; its classes and notes are kept.
        train: batches of training data, in a fixed order.
        val: batches of labeled ID validation data.
        test: batches of other ID data, to measure false alarms on.
        n_samples: size of the fitting subset; None takes everything.
        progress: whether to show progress bars; None shows them on a terminal.
    """
    target = files.make_folder(folder)
    files.remove(target / NOTES_FILE)  # it is written last, and tells that the shard is whole
    fewest = math.ceil(min(notes.sizes.values()) / notes.batch_size)
    if notes.of > fewest:
        raise NACError(
            f"{notes.of} shards cannot share {fewest} batches. Use fewer shards, or a smaller "
            "`batch_size`."
        )
    with as_shard(notes.number - 1, notes.of), recorded([]):  # merging tells what is wrong
        detector.fit(train, n_samples, progress=progress)
        detector.save(target / _COUNTS)
        for name, loader in ((_VAL, val), (_TEST, test)):
            if loader is not None:
                detector.read_loader(
                    loader, save_to=target / name, in_distribution=True, progress=progress
                )
    checksums = {name: tensor_files.checksum_in(target / name) for name in _FILES}
    document = {"notes": asdict(notes), "checksums": checksums}
    files.write_document(target / NOTES_FILE, _FORMAT, document)


class Merged(NamedTuple):
    """A whole fit.

    Args:
        fitted: what a detector's file holds.
        network: fingerprint of the network.
        report: what there is to say about it.
    """

    fitted: store.Fitted
    network: Mapping[str, str]
    report: FitReport

    def save(self, path: files.PathLike) -> None:
        """Write the detector's file."""
        store.save(path, self.fitted, self.network)


def merge_shards(folders: Sequence[files.PathLike]) -> Merged:
    """Merge all shards of a fit, in any order, and calibrate the result.

    Raises:
        NACError: a shard is missing, unfinished or damaged, or of another fit.
    """
    shards = [_Shard(Path(folder)) for folder in folders]
    shards.sort(key=lambda shard: shard.notes.number)
    _check_whole(shards)
    first = shards[0]
    rule, summary = first.fitted.rule, first.fitted.summary
    for other in shards[1:]:
        rule.merge(other.fitted.rule)
        summary = summary + other.fitted.summary
    rule.check()
    told: list[str] = []
    with recorded(told):
        warn_if_saturated(rule)
        val, notes = _in_order(shards, _VAL), first.notes
        threshold, found = calibrated(rule, map(rule.parts, val), 1 - notes.alpha)
    pvalues = enough(found)
    alarms = _alarms(rule, pvalues, _in_order(shards, _TEST), notes.alpha)
    answers = count_answers([(logits_in(b).shape[1], b.prediction, b.label) for b in val])
    report = report_of(summary, answers, pvalues, alarms, told, notes.n_classes, notes.alpha)
    fitted = replace(first.fitted, rule=rule, summary=summary, threshold=threshold, pvalues=pvalues)
    return Merged(fitted, first.network, report)


@dataclass(frozen=True)
class _Noted:
    """What the notes file holds; a checksum is empty where a shard has no such file."""

    notes: ShardNotes
    checksums: Mapping[str, str]


class _Shard:
    """A shard in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        noted: _Noted = files.read_document(
            folder / NOTES_FILE, _FORMAT, lambda found: from_values(_Noted, found),
            missing=f"{folder} holds no finished shard: there is no {NOTES_FILE}",
            again="Run this shard again",
        )  # fmt: skip
        self.notes = noted.notes
        for name in _FILES:  # e.g. the counts of another shard, which would count twice
            if tensor_files.checksum_in(folder / name) != noted.checksums.get(name):
                raise FileError(
                    f"{folder / name} is not the file of this shard. Run this shard again."
                )
        self.fitted, self.network = store.read_fitted(folder / _COUNTS)

    def common(self) -> tuple[Any, ...]:
        """What must be the same in all shards of a fit."""
        rule, notes = self.fitted.rule, replace(self.notes, number=1)
        named = self.fitted.classes, self.fitted.notes, self.fitted.autocast
        return notes, self.network, rule.name, rule.layers, named

    def batches(self, name: str) -> list[Readings]:
        """The batches of a dataset that this shard has read."""
        path = self.folder / name
        return list(Readings.load(path).batches(self.notes.batch_size)) if is_file(path) else []


def _check_whole(shards: Sequence[_Shard]) -> None:
    """Refuse anything but all shards of one fit."""
    first = shards[0]
    for shard in shards[1:]:
        if shard.common() != first.common():
            raise NACError(
                f"{shard.folder} and {first.folder} are shards of different fits: network, data "
                "and options must be the same."
            )
    check_shards([shard.notes.number for shard in shards], first.notes.of)


def _in_order(shards: Sequence[_Shard], name: str) -> list[Readings]:
    """The batches of all shards, as one process would have read them."""
    turns = zip_longest(*(shard.batches(name) for shard in shards))
    return [batch for turn in turns for batch in turn if batch is not None]


def _alarms(
    rule: Rule, pvalues: PValues, test: Sequence[Readings], alpha: float
) -> Optional[FalseAlarms]:
    if not test:
        return None
    scores = torch.cat([rule.score(batch) for batch in test])
    report_nonfinite(scores)
    return false_alarm_rates(pvalues(scores), [alpha])[0]
