"""Ranks the checkpoints of many runs, each without its target domain, and summarizes them."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np
from torch import nn
from torch.utils.data import Subset

from nac_openood import files
from nac_openood.core.tensors import versions
from nac_openood.detector.batches import Say
from nac_openood.errors import NACError
from nac_openood.evaluation.rank import rank_checkpoints
from nac_openood.evaluation.ranking import CRITERIA, Ranking, read_ranking, standard_error
from nac_openood.sources.checkpoints import Checkpoint, run_checkpoints
from nac_openood.sources.images import Transform
from nac_openood.sources.readers import DomainFolder, domain_classes, domain_folders, split_domain

Paths = Sequence[Union[str, Path]]
RANKED_RUNS_FILE = "results.json"
AVERAGE = "average"
_FORMAT, _KIND = 1, "a ranking of checkpoints (of nac-openood rank)"


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
        if self.trial is None:
            return self.target or "run"
        return f"{self.target}, trial {self.trial}"


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

    def __post_init__(self) -> None:
        if not self.runs:
            raise NACError("expected at least one run, got none.")

    @classmethod
    def of(cls, runs: Sequence[RankedRun]) -> RankedRuns:
        """Collect runs, with their notes and a note for every number that is undefined."""
        ranked = cls(tuple(runs))
        notes = [f"{run.name}: {note}" for run in runs for note in run.ranking.notes]
        for run in runs if ranked.has_test else ():
            for criterion in ("validation", "nac-me"):
                if run.ranking.rc(criterion) is None:
                    notes.append(
                        f"{run.name}: the RC of {criterion} is undefined, because all scores or "
                        "all test accuracies are equal. It is left out of means."
                    )
        return replace(ranked, notes=tuple(notes))

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
        found: dict[str, Any] = {}
        for target in (*self.targets, AVERAGE):
            for criterion in CRITERIA:
                numbers = {"ACC": self.accuracy(criterion, target)}
                if criterion != "oracle":
                    numbers = {"RC": self.rc(criterion, target), **numbers}
                found.setdefault(target, {})[criterion] = numbers
        return found

    def _summary(self, target: str, value: Callable[[Ranking], Optional[float]]) -> Summary:
        if target != AVERAGE:
            rows = [value(run.ranking) for run in self.runs if run.target == target]
            known = [100 * row for row in rows if row is not None]
            mean = float(np.mean(known)) if known else None
            return Summary(mean, standard_error(known))
        # the mean over domains of means over trials, as in the paper
        means = [self._summary(name, value).mean for name in self.targets]
        known = [mean for mean in means if mean is not None]
        return Summary(float(np.mean(known)) if len(known) == len(means) else None, None)

    def save(self, folder: Union[str, Path]) -> Path:
        """Write `results.json` into a folder, atomically."""
        path = Path(folder) / RANKED_RUNS_FILE
        return files.write_document(path, _FORMAT, asdict(self), kind=_KIND)

    @classmethod
    def load(cls, folder: Union[str, Path]) -> RankedRuns:
        """Read what `save` wrote."""
        return read_ranking(Path(folder) / RANKED_RUNS_FILE, _FORMAT, cls, _KIND)


def rank_runs(
    runs: Sequence[TrainingRun],
    domains: Mapping[str, Any],
    load: Callable[[str], nn.Module],
    *,
    out: Union[str, Path],
    say: Say = lambda text: None,
    **options: Any,
) -> RankedRuns:
    """Rank the checkpoints of every run, with splits seeded by its trial.

    The settings are chosen for each run by itself, from its source domains only. Repeat the call
    after an interruption to continue.

    Examples:
        >>> folders = domain_folders("PACS")
        >>> classes = domain_classes(folders.values())
        >>> domains = {n: DomainFolder(p, classes, domainbed_transform(64))
        ...            for n, p in folders.items()}
        >>> runs = find_runs("study/erm", list(domains))  # study/erm/sketch/trial_0/step_300.pt
        >>> ranked = rank_runs(runs, domains, load, out="ranking", space="pacs")
        >>> ranked.rc("nac-me"), ranked.accuracy("nac-me", "sketch")

    Args:
        runs: from `find_runs`.
        domains: datasets of all domains by name, in sorted order.
        load: makes a network, on its device, from the path of a checkpoint.
        out: folder of the readings and rankings, `out/<target>/trial_<number>`.
        say: function that is called with status messages.
        options: other settings of `rank_checkpoints`: `layer`, `space`, `batch_size`, `workers` and
            `progress`.
    """
    # before the long part, so that a wrong domain is noticed at once
    splits: list[Any] = [split_domains(domains, run.target, run.trial) for run in runs]
    ranked = []
    for number, (run, roles) in enumerate(zip(runs, splits), start=1):
        say(f"run {number} of {len(runs)}: {run.name}")
        ranking = rank_checkpoints(
            {each.name: each.path for each in run.checkpoints}, **roles,
            load=load, out=Path(out) / run.name, say=say, **options,
        )  # fmt: skip
        ranked.append(RankedRun(run.target, run.trial, ranking))
    return RankedRuns.of(ranked)


def with_origin(ranked: RankedRuns, *, dataset: str, arch: str, command: str) -> RankedRuns:
    """Add what a reader needs to repeat the ranking, the time, and versions of the libraries."""
    return replace(
        ranked, dataset=dataset, arch=arch, command=command,
        created=datetime.now().isoformat(timespec="seconds"),
        versions={**versions(), "scipy": version("scipy")},
    )  # fmt: skip


# -- runs and domains in folders -------------------------------------------------------------


@dataclass(frozen=True)
class TrainingRun:
    """A training run without the target domain.

    Args:
        target: name of the target domain.
        trial: number of the trial, which seeds the splits.
        checkpoints: in the order of training.
    """

    target: str
    trial: int
    checkpoints: tuple[Checkpoint, ...]

    @property
    def name(self) -> str:
        """Its folder in the results."""
        return f"{self.target}/trial_{self.trial}"


def find_runs(folder: Union[str, Path], domains: Sequence[str]) -> list[TrainingRun]:
    """Find the runs in `folder/<target domain>/trial_<number>`, sorted by domain and trial.

    Args:
        folder: with a folder for each target domain, in which each trial has a folder of
            checkpoints.
        domains: names of all domains of the dataset.

    Raises:
        NACError: if there is no run, the name of a folder is not a domain, or a run has fewer than
            two checkpoints.
    """
    root = Path(folder)
    targets = sorted(p for p in root.glob("*") if p.is_dir() and not p.name.startswith("."))
    unknown = [path.name for path in targets if path.name not in domains]
    if unknown or not targets:
        found = f"{', '.join(unknown)}, which are not domains" if unknown else "no folders"
        raise NACError(
            f"{root} holds {found}; expected a folder for each target domain, some of "
            f"{', '.join(domains)}, as in {root}/{domains[0]}/trial_0/step_300.pt."
        )
    runs = []
    for path in (path for target in targets for path in target.glob("*") if path.is_dir()):
        number = re.search(r"trial[_-]?(\d+)$", path.name)
        if number:
            checkpoints = tuple(run_checkpoints([path]))
            runs.append(TrainingRun(path.parent.name, int(number[1]), checkpoints))
    few = [f"{run.name} has one" for run in runs if len(run.checkpoints) < 2]
    if few or not runs:
        raise NACError(
            f"expected runs with at least two checkpoints each in {targets[0]}/trial_0 and other "
            f"such folders; {', '.join(few) or 'there are none'}."
        )
    return sorted(runs, key=lambda run: (run.target, run.trial))


def split_domains(
    domains: Mapping[str, Any], target: str, trial: int
) -> dict[str, dict[str, Subset[Any]]]:
    """Split all domains for a run, as DomainBed does.

    Of each source domain, 80 % are training and 20 % validation data; of the target domain, 80 %
    are test data, and the oracle chooses by the other 20 %.

    Args:
        domains: datasets of all domains, in sorted order; the order is part of the seed.
        target: name of the target domain.
        trial: number of the trial.

    Returns:
        Keywords of `rank_checkpoints`: `train`, `val`, `test` and `oracle`.
    """
    if target not in domains:
        raise NACError(f"unknown domain '{target}'; expected one of {', '.join(domains)}.")
    if len(domains) < 2:
        raise NACError(f"expected two or more domains to leave one out, got {', '.join(domains)}.")
    roles: dict[str, dict[str, Subset[Any]]] = {"train": {}, "val": {}, "test": {}, "oracle": {}}
    for index, (name, data) in enumerate(domains.items()):
        first, second = ("test", "oracle") if name == target else ("train", "val")
        roles[first][name], roles[second][name] = split_domain(data, trial, index)
    return roles


def all_domains(root: Union[str, Path], transform: Transform) -> dict[str, DomainFolder]:
    """All domains of a dataset in DomainBed's layout, sorted by name, with the same classes."""
    folders = domain_folders(root)
    classes = domain_classes(folders.values())
    return {name: DomainFolder(path, classes, transform) for name, path in folders.items()}


def domains_by_role(
    train: Paths,
    val: Optional[Paths],
    test: Optional[Paths],
    transform: Transform,
    *,
    trial: int = 0,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read domains from folders, as keywords of `rank_checkpoints`, and their classes.

    Args:
        train: a folder `domain/class/image` for each source domain.
        val: the same with validation data; None holds out 20 % of each training domain, as
            DomainBed does.
        test: folders of target domains, or None.
        transform: turns an image into a tensor.
        trial: seeds the split, where `val` is None.
    """
    folders = {"train": train, "val": val or (), "test": test or ()}
    classes = domain_classes(path for paths in folders.values() for path in paths)
    roles: dict[str, dict[str, Any]] = {}
    for role, paths in folders.items():
        names = [Path(path).resolve().name for path in paths]
        if len(set(names)) < len(names):
            raise NACError(f"`{role}`: two domains have the same name: {names}. Rename a folder.")
        data = (DomainFolder(path, classes, transform) for path in paths)
        roles[role] = dict(zip(names, data))
    for path, name in zip(train, list(roles["train"])) if not val else ():
        index = list(domain_folders(Path(path).resolve().parent)).index(name)
        split = split_domain(roles["train"][name], trial, index)
        roles["train"][name], roles["val"][name] = split
    return roles, classes
