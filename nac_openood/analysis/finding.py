"""What a study found, as JSON values: a sentence, tables, figures and numbers, and about what."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Union

from nac_openood import files
from nac_openood.analysis.figures import Figure, figure_of
from nac_openood.errors import NACError
from nac_openood.structure import checked, from_values

_FORMAT = 1

#: A number with two digits, a text as it is, a mean and its standard deviation, or nothing.
Entry = Union[None, float, str, Sequence[Optional[float]]]


@dataclass(frozen=True)
class ColumnHead:
    """The heading of a column: `group` stands above it, `better` is "higher", "lower" or ""."""

    title: str
    group: str = ""
    better: str = ""
    number: bool = True


@dataclass(frozen=True)
class DataTable:
    """Rows below headings.

    Args:
        title: above the table.
        columns: the headings.
        rows: an entry per column.
        ours: numbers of the rows to highlight.
    """

    title: str
    columns: Sequence[ColumnHead]
    rows: Sequence[Sequence[Entry]]
    ours: Sequence[int] = ()


@dataclass(frozen=True)
class Example:
    """A sample to look at.

    Args:
        dataset: the set it is in.
        name: of its file, or its number.
        shares: percent by name, shown as bars.
        image: a picture as a data URL, or None.
    """

    dataset: str
    name: str
    shares: Mapping[str, float]
    image: Optional[str] = None


@dataclass(frozen=True)
class Examples:
    """Samples side by side below a title."""

    title: str
    samples: Sequence[Example]


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


@dataclass(frozen=True)
class Finding:
    """What a study found.

    Args:
        kind: name of the kind of analysis.
        title: title of its section.
        sentence: what it says, in one or two sentences.
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
    tables: Sequence[DataTable] = ()
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
        """What `to_dict` gave.

        Raises:
            NACError: what is missing or wrong.
        """
        known = dict(document)
        figures = checked(Sequence[Mapping[str, Any]], known.pop("figures", None), "figures")
        found = from_values(cls, known, figures=list(map(figure_of, figures)))
        _check_tables(found)
        return found

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


def _check_tables(found: Finding) -> None:
    """Raise if a row is longer or shorter than its table."""
    for table in found.tables:
        pairs = [e for row in table.rows for e in row if isinstance(e, (list, tuple))]
        if any(len(row) != len(table.columns) for row in table.rows):
            raise NACError(f"a row of the table '{table.title}' has not one entry per column")
        if any(len(pair) != 2 for pair in pairs):
            raise NACError(f"an entry of the table '{table.title}' is no mean with its deviation")
