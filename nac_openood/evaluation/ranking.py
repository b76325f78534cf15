"""The ranking of the checkpoints of one training run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Mapping, Optional, Sequence, Type, TypeVar, Union

import numpy as np

from nac_openood import files
from nac_openood.core.layer_config import IntegralConfig
from nac_openood.errors import NACError
from nac_openood.evaluation.correlation import rank_correlation
from nac_openood.evaluation.volume import VolumePoint
from nac_openood.records import from_values

RANKING_FILE = "ranking.json"
_FORMAT = 1
_T = TypeVar("_T")
#: The criteria by which a checkpoint can be chosen, with the names of the paper.
CRITERIA: Mapping[str, str] = {
    "validation": "Validation",
    "nac-me": "NAC-ME",
    "oracle": "Oracle",
}


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
            raise NACError("a ranking has checkpoints and settings that were tried, this one none")

    @property
    def has_test(self) -> bool:
        """Whether there was data of target domains."""
        return self.checkpoints[0].test is not None

    @property
    def rc_val(self) -> Optional[float]:
        """Rank correlation of G with validation accuracy; no target data is used."""
        return rank_correlation(self.scores("nac-me"), self.scores("validation"))

    def scores(self, criterion: str) -> list[float]:
        """What a criterion says of each checkpoint."""
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
        self._tested()
        return float(self.chosen(criterion).test or 0.0)

    def _tested(self) -> list[float]:
        found = [each.test for each in self.checkpoints]
        if any(value is None for value in found):
            raise NACError("there was no data of target domains: pass `test` to measure this.")
        return [float(value) for value in found if value is not None]

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


def choose(candidates: Sequence[IntegralCandidate]) -> tuple[IntegralCandidate, list[str]]:
    """The candidate whose G agrees best with validation accuracy, and notes about the choice.

    Raises:
        NACError: if the correlation is undefined for all of several candidates.
    """
    defined = [c for c in candidates if c.rc_val is not None]
    if defined:
        return max(defined, key=lambda c: c.rc_val or 0.0), []
    if len(candidates) > 1:
        raise NACError(
            "the settings of NAC-ME cannot be chosen: the validation accuracies of all checkpoints "
            "are equal, or their coverage is with every setting. Rank checkpoints that differ, or "
            "use more validation data; in Python, `space` also takes one IntegralConfig."
        )
    return candidates[0], ["RC with validation accuracy is undefined: all values are equal."]
