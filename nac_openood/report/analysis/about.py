"""What a finding says about the network and the data, as the page needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from nac_openood.analysis.finding import Finding
from nac_openood.errors import NACError
from nac_openood.structure import checked, from_values


@dataclass(frozen=True)
class _Validation:
    name: str
    surrogate: bool


@dataclass(frozen=True)
class _About:
    """The entries of `AnalysisData.about`, and the command."""

    id_name: str
    arch: str
    accuracy: float
    roles: Mapping[str, str]
    samples: Mapping[str, int]
    ood_val: _Validation
    settings: Mapping[str, Mapping[str, Any]]
    searched: bool
    made_with: Mapping[str, Any]
    command: str
    training_samples: int = 0

    def __post_init__(self) -> None:
        versions = checked(Mapping[str, str], self.made_with.get("versions"), "versions")
        if "nac_openood" not in versions or not set(self.roles) <= set(self.samples):
            raise NACError("it names no version of nac_openood, or a set without samples")


def check_about(found: Finding) -> None:
    """Refuse a finding that does not say what it is about.

    Raises:
        NACError: what is missing or of the wrong type.
    """
    from_values(_About, found.about, "about")
