"""The result of a study: a sentence, tables, figures and numbers, and the network they are of."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

from nac_openood import files
from nac_openood.errors import NACError
from nac_openood.records import checked, from_values
from nac_openood.tables import Examples, Figure, Table, figure_of

_FORMAT = 1


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
            raise NACError("the version of nac_openood or the size of a set is missing")

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of the libraries."""
        found: Mapping[str, str] = checked(
            Mapping[str, str], self.made_with.get("versions"), "versions"
        )
        return found


@dataclass(frozen=True)
class Finding:
    """The result of a study.

    Args:
        kind: name of the kind of analysis.
        title: title of its section.
        sentence: the result in one or two sentences.
        tables: to show.
        figures: to draw; their keys are unique.
        records: every number with its coordinates, for the CSV file; all have the same keys.
        values: other results as JSON values.
        notes: what a reader should know, a sentence each.
        about: which network and data it is about; filled in by `analyze`.
        gallery: samples to look at.
    """

    kind: str
    title: str
    sentence: str
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    records: Sequence[Mapping[str, Any]] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    about: Optional[About] = None
    gallery: Sequence[Examples] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON values that `from_dict` reads."""
        figures = [{"type": figure.type, **asdict(figure)} for figure in self.figures]
        return {**asdict(self), "figures": figures}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Finding:
        """Read what `to_dict` returned.

        Raises:
            NACError: a field is missing or wrong.
        """
        fields = dict(document)
        figures = checked(Sequence[Mapping[str, Any]], fields.pop("figures", None), "figures")
        return from_values(cls, fields, figures=list(map(figure_of, figures)))

    def save(self, folder: Path) -> Path:
        """Write `<kind>.json` into a folder, atomically."""
        return files.write_document(folder / f"{self.kind}.json", _FORMAT, self.to_dict())

    @classmethod
    def load(cls, path: Path) -> Finding:
        """Read what `save` wrote.

        Raises:
            FileError: the file is missing, damaged or newer than this package.
        """
        missing, again = f"there is no {path}", "Repeat the analysis"
        return files.read_document(path, _FORMAT, cls.from_dict, missing=missing, again=again)
