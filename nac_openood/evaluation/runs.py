"""Leave one domain out: which runs there are, and their splits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Sequence, Union

from torch.utils.data import Subset

from nac_openood.errors import NACError
from nac_openood.files import entries, is_folder
from nac_openood.sources.checkpoints import Checkpoint, run_checkpoints
from nac_openood.sources.readers import split_domain

_TRIAL = re.compile(r"trial[_-]?(\d+)$")


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
    """The runs in `folder/<target domain>/trial_<number>`, by domain and trial.

    Args:
        folder: with a folder for each target domain, in which each trial has a folder of
            checkpoints.
        domains: names of all domains of the dataset.

    Raises:
        NACError: if there is no run, a folder is named after no domain, or a run has fewer than two
            checkpoints.
    """
    root = Path(folder)
    if not is_folder(root):
        raise NACError(f"there is no folder {root}: expected the folder of your runs.")
    targets = [p for p in entries(root) if is_folder(p) and not p.name.startswith(".")]
    unknown = [path.name for path in targets if path.name not in domains]
    if unknown or not targets:
        found = f"{', '.join(unknown)}, which are no domains" if unknown else "no folders"
        raise NACError(
            f"{root} holds {found}; expected a folder for each target domain, some of "
            f"{', '.join(domains)}, as in {root}/{domains[0]}/trial_0/step_300.pt."
        )
    runs = []
    for target in targets:
        for path in filter(is_folder, entries(target)):
            number = _TRIAL.search(path.name)
            if number:
                checkpoints = tuple(run_checkpoints([path]))
                runs.append(TrainingRun(target.name, int(number[1]), checkpoints))
    if not runs:
        raise NACError(
            f"{root} holds no runs: expected folders such as {targets[0]}/trial_0 with checkpoints."
        )
    few = [run.name for run in runs if len(run.checkpoints) < 2]
    if few:
        raise NACError(
            f"expected at least two checkpoints in each run; {', '.join(few)} has one, so its rank "
            "correlation is undefined. Keep more checkpoints, or take the run out of the folder."
        )
    return sorted(runs, key=lambda run: (run.target, run.trial))


def split_domains(
    domains: Mapping[str, Any], target: str, trial: int
) -> dict[str, dict[str, Subset[Any]]]:
    """The roles of all domains in a run, split as DomainBed does it.

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
