"""Rankings of the checkpoints of one training run and of many, and how good they are."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence, Type, TypeVar, Union

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import sem, spearmanr

from nac_openood import files
from nac_openood.core.layer_config import IntegralConfig, refuse_unknown
from nac_openood.errors import NACError
from nac_openood.records import from_values
from nac_openood.tensor_files import versions

RANKING_FILE, RANKED_RUNS_FILE = "ranking.json", "results.json"
AVERAGE = "average"
_FORMAT, _KIND = 1, "a ranking of checkpoints (of nac-openood rank)"
_T = TypeVar("_T")
#: The criteria by which a checkpoint can be chosen, with the names of the paper.
CRITERIA = {"validation": "Validation", "nac-me": "NAC-ME", "oracle": "Oracle"}
#: The field of a checkpoint that each criterion compares.
_SCORES = {"validation": "val", "nac-me": "coverage", "oracle": "oracle"}
#: Shares of the test data, the least number of samples, and the number of random draws of each.
_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
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
        refuse_unknown({criterion: None}, CRITERIA, "criterion")
        return self._values(_SCORES[criterion])

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
        return rank_correlation(self.scores(criterion), self._values("test"))

    def accuracy(self, criterion: str) -> float:
        """Test accuracy of the checkpoint that a criterion chooses."""
        return self._values("test")[self.checkpoints.index(self.chosen(criterion))]

    def _values(self, name: str) -> list[float]:
        found = [getattr(each, name) for each in self.checkpoints]
        if None in found:
            raise NACError("there was no data of target domains: pass `test` to measure this.")
        return found

    def save(self, folder: Union[str, Path]) -> None:
        """Write `ranking.json` into a folder, atomically."""
        files.write_document(Path(folder) / RANKING_FILE, _FORMAT, asdict(self))

    @classmethod
    def load(cls, folder: Union[str, Path]) -> Ranking:
        """Read what `save` wrote."""
        return _read(Path(folder) / RANKING_FILE, cls)


class Summary(NamedTuple):
    """Mean over trials times 100, as the paper prints it, and its standard error.

    `mean` is None where nothing is defined, `error` where there are fewer than two trials.
    """

    mean: Optional[float]
    error: Optional[float]


@dataclass(frozen=True)
class RankedRun:
    """The ranking of one run; `target` is empty and `trial` None where no domain is left out."""

    target: str
    trial: Optional[int]
    ranking: Ranking

    @property
    def name(self) -> str:
        """Its name in tables and plots."""
        trial = "" if self.trial is None else f", trial {self.trial}"
        return f"{self.target or 'run'}{trial}"


@dataclass(frozen=True)
class RankedRuns:
    """The rankings of all runs.

    Args:
        runs: by target domain and trial.
        dataset: name of the dataset, e.g. "pacs".
        arch: name of the network.
        command: the command that repeats it.
        created: ISO date and time.
        versions: versions of the libraries.
        paper: measured beside published numbers, as dicts; empty if not requested.
        notes: what a reader should know.
    """

    runs: tuple[RankedRun, ...]
    dataset: str = ""
    arch: str = ""
    command: str = ""
    created: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    paper: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, runs: Sequence[RankedRun]) -> RankedRuns:
        """Collect runs, with their notes and a note for every number that is undefined."""
        notes = [f"{run.name}: {note}" for run in runs for note in run.ranking.notes]
        notes += [
            f"{run.name}: the RC of {criterion} is undefined, because all scores or all test "
            "accuracies are equal. It is left out of means."
            for run, criterion in product(runs, ("validation", "nac-me"))
            if run.ranking.has_test and run.ranking.rc(criterion) is None
        ]
        created = datetime.now().isoformat(timespec="seconds")
        known = {**versions(), "scipy": version("scipy")}
        return cls(tuple(runs), created=created, versions=known, notes=tuple(notes))

    @property
    def targets(self) -> list[str]:
        """The target domains, in order."""
        return list(dict.fromkeys(run.target for run in self.runs))

    @property
    def has_test(self) -> bool:
        """Whether there was data of target domains."""
        return all(run.ranking.has_test for run in self.runs)

    def rc(self, criterion: str, target: str = AVERAGE) -> Summary:
        """RC of a criterion with test accuracy."""
        return self._summary(target, lambda ranking: ranking.rc(criterion))

    def accuracy(self, criterion: str, target: str = AVERAGE) -> Summary:
        """Test accuracy of the checkpoints that a criterion chooses."""
        return self._summary(target, lambda ranking: ranking.accuracy(criterion))

    def measured(self) -> dict[str, dict[str, dict[str, Summary]]]:
        """By target domain and average, criterion and metric."""
        found: dict[str, Any] = {target: {} for target in (*self.targets, AVERAGE)}
        for target, criterion in product(found, CRITERIA):
            rc = {} if criterion == "oracle" else {"RC": self.rc(criterion, target)}
            found[target][criterion] = {**rc, "ACC": self.accuracy(criterion, target)}
        return found

    def _summary(self, target: str, value: Callable[[Ranking], Optional[float]]) -> Summary:
        if target == AVERAGE:  # the mean over domains of means over trials, as in the paper
            means = [self._summary(name, value).mean for name in self.targets]
            known = [mean for mean in means if mean is not None]
            return Summary(float(np.mean(known)) if len(known) == len(means) else None, None)
        rows = [value(run.ranking) for run in self.runs if run.target == target]
        known = [100 * row for row in rows if row is not None]
        error = float(sem(known)) if len(known) > 1 else None
        return Summary(float(np.mean(known)) if known else None, error)

    def save(self, folder: Union[str, Path]) -> Path:
        """Write `results.json` into a folder, atomically."""
        path = Path(folder) / RANKED_RUNS_FILE
        return files.write_document(path, _FORMAT, asdict(self), kind=_KIND)

    @classmethod
    def load(cls, folder: Union[str, Path]) -> RankedRuns:
        """Read what `save` wrote."""
        return _read(Path(folder) / RANKED_RUNS_FILE, cls, _KIND)


def _read(path: Path, made: Type[_T], kind: str = "") -> _T:
    missing = f"there is no {path}: expected the folder of a ranking"
    parse = partial(from_values, made)
    return files.read_document(path, _FORMAT, parse, missing=missing, again="Rank again", kind=kind)


def rank_correlation(scores: ArrayLike, accuracies: ArrayLike) -> Optional[float]:
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
            f"expected a finite score and accuracy for each checkpoint, got {first} and {second}."
        )
    if len(first) < 2 or len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return float(spearmanr(first, second).statistic)


def rc_by_volume(
    scores: Mapping[str, Sequence[float]], correct: Sequence[np.ndarray]
) -> list[VolumePoint]:
    """RC of each criterion with test accuracy on random parts of the test data, by their share.

    All checkpoints are tested on the same samples. Shares of fewer than ten samples are left out.

    Args:
        scores: the score of each checkpoint, by criterion.
        correct: for each target domain, `[checkpoints, samples]`, 1 where the prediction is right.
    """
    rng, points = np.random.default_rng(0), []
    for share in _SHARES:
        sizes = [max(1, round(share * flags.shape[1])) for flags in correct]
        if sum(sizes) < _FEWEST and share < 1:
            continue
        accuracies = []
        for _ in range(_DRAWS if share < 1 else 1):
            rows = [rng.choice(f.shape[1], n, replace=False) for f, n in zip(correct, sizes)]
            drawn = [f[:, r].mean(axis=1) for f, r in zip(correct, rows)]
            accuracies.append(np.mean(drawn, axis=0))
        for criterion, values in scores.items():
            found = [rank_correlation(values, each) for each in accuracies]
            rcs = [rc for rc in found if rc is not None]
            mean = float(np.mean(rcs)) if rcs else None
            std = float(np.std(rcs, ddof=min(1, len(rcs) - 1))) if rcs else None
            points.append(VolumePoint(criterion, share, sum(sizes), mean, std, len(rcs)))
    return points
