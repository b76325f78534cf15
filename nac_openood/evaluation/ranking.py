"""The ranking of the checkpoints of one training run, and how good it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Mapping, Optional, Sequence, Type, TypeVar, Union

import numpy as np
from scipy.stats import spearmanr

from nac_openood import files
from nac_openood.core.layer_config import IntegralConfig
from nac_openood.errors import NACError
from nac_openood.evaluation.extraction import CheckpointReadings
from nac_openood.records import from_values
from nac_openood.sources.checkpoints import Checkpoint, training_step

RANKING_FILE = "ranking.json"
_FORMAT = 1
_T = TypeVar("_T")
#: The criteria by which a checkpoint can be chosen, with the names of the paper.
CRITERIA: Mapping[str, str] = {
    "validation": "Validation",
    "nac-me": "NAC-ME",
    "oracle": "Oracle",
}


#: Shares of the test data, the least number of samples, and the number of random draws of each.
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_FEWEST, _DRAWS = 10, 20


@dataclass(frozen=True)
class RankedCheckpoint:
    """A checkpoint; accuracies are shares from 0 to 1, means over domains.

    Args:
        name: its name.
        path: its file, or the name of its class.
        step: the training step, from the name of the file; None if that has no number.
        coverage: G, with the settings that were chosen.
        val: accuracy on held-out data of the source domains.
        test: accuracy on the target domains; None if there are none.
        oracle: accuracy on the data that the oracle chooses by.
        by_domain: accuracies by role and domain.
    """

    name: str
    path: str
    step: Optional[int]
    coverage: float
    val: float
    test: Optional[float] = None
    oracle: Optional[float] = None
    by_domain: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class IntegralCandidate:
    """Settings that were tried.

    Args:
        config: the settings.
        coverage: G of each checkpoint.
        rc_val: rank correlation of G with validation accuracy; None where it is undefined.
    """

    config: IntegralConfig
    coverage: tuple[float, ...]
    rc_val: Optional[float]


@dataclass(frozen=True)
class VolumePoint:
    """RC with the test accuracy on a random share of the test data.

    Args:
        criterion: "validation" or "nac-me".
        share: of the samples of each target domain.
        samples: how many that are.
        mean: of RC over random draws; None where it is undefined for all of them.
        std: its standard deviation over draws.
        draws: how many draws have an RC.
    """

    criterion: str
    share: float
    samples: int
    mean: Optional[float]
    std: Optional[float]
    draws: int


@dataclass(frozen=True)
class Ranking:
    """The checkpoints of a run, best first by NAC-ME in `order()`.

    Args:
        checkpoints: in the order of training.
        candidates: all settings that were tried.
        config: those that were chosen: the highest `rc_val`, the first of equal ones.
        layer: module path of the layer.
        sizes: number of samples by role and domain.
        volume: RC over the volume of test data; empty without test data.
        notes: what a reader should know.
    """

    checkpoints: tuple[RankedCheckpoint, ...]
    candidates: tuple[IntegralCandidate, ...]
    config: IntegralConfig
    layer: str
    sizes: Mapping[str, Mapping[str, int]]
    volume: tuple[VolumePoint, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.checkpoints or not self.candidates:
            raise NACError("the ranking has no checkpoints, or no settings that were tried")

    @property
    def has_test(self) -> bool:
        """Whether there was data of target domains."""
        return self.checkpoints[0].test is not None

    @property
    def rc_val(self) -> Optional[float]:
        """Rank correlation of G with validation accuracy; no target data is used."""
        return rank_correlation(self.scores("nac-me"), self.scores("validation"))

    def scores(self, criterion: str) -> list[float]:
        """The score of each checkpoint by a criterion."""
        names = {"validation": "val", "nac-me": "coverage", "oracle": "oracle"}
        if criterion not in names:
            raise NACError(f"unknown criterion {criterion!r}; expected one of {list(names)}.")
        found = [getattr(each, names[criterion]) for each in self.checkpoints]
        if any(value is None for value in found):
            raise NACError("the oracle needs data of the target domains: pass `test`.")
        return found

    def order(self, criterion: str = "nac-me") -> list[RankedCheckpoint]:
        """The checkpoints, best first; equal ones in the order of training."""
        scores = np.asarray(self.scores(criterion))
        return [self.checkpoints[i] for i in np.argsort(-scores, kind="stable")]

    def chosen(self, criterion: str = "nac-me") -> RankedCheckpoint:
        """The best checkpoint; of equal ones the earliest."""
        return self.order(criterion)[0]

    def rc(self, criterion: str) -> Optional[float]:
        """Rank correlation of a criterion with test accuracy; None where it is undefined.

        See `rank_correlation`: equal values share the mean of their ranks.
        """
        return rank_correlation(self.scores(criterion), self._tested())

    def accuracy(self, criterion: str) -> float:
        """Test accuracy of the checkpoint that a criterion chooses."""
        return self._tested()[self.checkpoints.index(self.chosen(criterion))]

    def _tested(self) -> list[float]:
        if not self.has_test:
            raise NACError("there was no data of target domains: pass `test` to measure this.")
        return [each.test or 0.0 for each in self.checkpoints]

    def save(self, folder: Union[str, Path]) -> None:
        """Write `ranking.json` into a folder, atomically."""
        files.write_document(Path(folder) / RANKING_FILE, _FORMAT, asdict(self))

    @classmethod
    def load(cls, folder: Union[str, Path]) -> Ranking:
        """Read what `save` wrote."""
        return read_ranking(Path(folder) / RANKING_FILE, _FORMAT, cls)


def read_ranking(path: Path, version: int, made: Type[_T], kind: str = "") -> _T:
    """`files.read_document` for the files of rankings, which hold the fields of a class."""
    missing = f"there is no {path}: expected the folder of a ranking"
    parse = partial(from_values, made)
    return files.read_document(path, version, parse, missing=missing, again="Rank again", kind=kind)


def rank_correlation(
    scores: Union[Sequence[float], np.ndarray], accuracies: Union[Sequence[float], np.ndarray]
) -> Optional[float]:
    """Spearman's rank correlation from -1 to 1, or None where it is undefined.

    It is undefined for fewer than two checkpoints, and where all scores or all accuracies are
    equal. Ties get the mean of their ranks, as in scipy; the authors' code breaks them by position.

    Args:
        scores: the score of each checkpoint by a criterion.
        accuracies: of the same checkpoints.
    """
    first, second = np.asarray(scores, dtype=float), np.asarray(accuracies, dtype=float)
    if first.shape != second.shape or not np.isfinite([first, second]).all():
        raise NACError(
            f"expected a finite score and accuracy for each checkpoint, got {scores} and "
            f"{accuracies}."
        )
    if len(first) < 2 or len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return float(spearmanr(first, second).statistic)


def standard_error(values: Sequence[float]) -> Optional[float]:
    """Standard error of the mean, as the paper prints it; None for fewer than two values."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def rc_by_volume(
    scores: Mapping[str, Sequence[float]],
    correct: Sequence[np.ndarray],
    *,
    shares: Sequence[float] = SHARES,
) -> list[VolumePoint]:
    """RC of each criterion with test accuracy on 20 random parts of the test data per share.

    All checkpoints are tested on the same samples.

    Args:
        scores: the score of each checkpoint, by criterion.
        correct: for each target domain, `[checkpoints, samples]`, 1 where the prediction is right.
        shares: which shares of the test data to use; those of fewer than ten samples are left out,
            except for all of the data.
    """
    rng = np.random.default_rng(0)
    points = []
    for share in shares:
        sizes = [max(1, round(share * flags.shape[1])) for flags in correct]
        if sum(sizes) < _FEWEST and share < 1:
            continue
        found: dict[str, list[float]] = {criterion: [] for criterion in scores}
        for _ in range(_DRAWS if share < 1 else 1):
            rows = [rng.choice(f.shape[1], n, replace=False) for f, n in zip(correct, sizes)]
            accuracies = np.mean([f[:, r].mean(axis=1) for f, r in zip(correct, rows)], axis=0)
            for criterion, values in scores.items():
                rc = rank_correlation(values, accuracies)
                if rc is not None:
                    found[criterion].append(rc)
        for criterion, rcs in found.items():
            mean, std = (float(np.mean(rcs)), float(np.std(rcs))) if rcs else (None, None)
            points.append(VolumePoint(criterion, share, sum(sizes), mean, std, len(rcs)))
    return points


def assemble_ranking(
    checkpoints: Sequence[Checkpoint],
    readings: Sequence[CheckpointReadings],
    configs: Sequence[IntegralConfig],
) -> Ranking:
    """Choose the settings and rank the checkpoints, from readings alone."""
    val = [each.accuracy("val") or 0.0 for each in readings]  # there is always validation data
    coverage = np.array([each.coverage(configs) for each in readings])  # [checkpoints, settings]
    tried = [
        IntegralCandidate(config, tuple(values), rank_correlation(values, val))
        for config, values in zip(configs, coverage.T.tolist())
    ]
    notes: tuple[str, ...] = ()
    best = max(tried, key=lambda each: -2 if each.rc_val is None else each.rc_val)
    if best.rc_val is None:
        if len(tried) > 1:
            raise NACError(
                "the settings of NAC-ME cannot be chosen: the validation accuracies of all "
                "checkpoints are equal, or their coverage is with every setting. Rank checkpoints "
                "that differ, or use more validation data; in Python, `space` also takes one "
                "IntegralConfig."
            )
        notes = ("RC with validation accuracy is undefined: all values are equal.",)
    roles = readings[0].correct
    ranked = tuple(
        RankedCheckpoint(
            one.name, one.path, training_step(one), g, accuracy, each.accuracy("test"),
            each.accuracy("oracle" if "oracle" in roles else "test"),
            {role: each.accuracies(role) for role in ("val", "test", "oracle") if role in roles},
        )
        for one, each, g, accuracy in zip(checkpoints, readings, best.coverage, val)
    )  # fmt: skip
    correct = [
        np.stack([each.correct["test"][name].numpy() for each in readings])
        for name in roles.get("test", ())
    ]
    volume = rc_by_volume({"validation": val, "nac-me": best.coverage}, correct) if correct else ()
    sizes = {role: {name: len(c) for name, c in found.items()} for role, found in roles.items()}
    layer = readings[0].layer
    return Ranking(ranked, tuple(tried), best.config, layer, sizes, tuple(volume), notes)
