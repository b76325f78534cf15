"""What a finding is about: a network, its data, and the settings of NAC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from nac_openood.errors import NACError
from nac_openood.structure import checked


@dataclass(frozen=True)
class ValidationData:
    """The OOD validation set; `surrogate` if it is made of ID validation data."""

    name: str
    surrogate: bool


@dataclass(frozen=True)
class About:
    """Which network and data a finding is about.

    Args:
        id_name: name of the in-distribution data.
        arch: name of the architecture.
        accuracy: ID accuracy in percent.
        roles: "id", "csid", "near" or "far" by test set.
        samples: number of samples by set, of the test sets and those that NAC is fitted on.
        ood_val: the OOD validation set.
        settings: those of NAC by layer.
        searched: whether they were searched.
        made_with: what readings depend on; `versions` are those of the libraries.
        command: the command that repeats the analysis.
        training_samples: how many were read.
    """

    id_name: str
    arch: str
    accuracy: float
    roles: Mapping[str, str]
    samples: Mapping[str, int]
    ood_val: ValidationData
    settings: Mapping[str, Mapping[str, Any]]
    searched: bool
    made_with: Mapping[str, Any]
    command: str
    training_samples: int = 0

    def __post_init__(self) -> None:
        if "nac_openood" not in self.versions or not set(self.roles) <= set(self.samples):
            raise NACError("it names no version of nac_openood, or a set without samples")

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of the libraries."""
        found: Mapping[str, str] = checked(
            Mapping[str, str], self.made_with.get("versions"), "versions"
        )
        return found
