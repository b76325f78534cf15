"""The readings a search needs, by role, and a folder to keep them in.

A folder holds a safetensors file for each role and `readings.json`, which is written last: a set
without it is not complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Mapping, Optional, Union

from nac_openood import files, tensor_files
from nac_openood.detector.readings import Readings
from nac_openood.errors import FileError, NACError
from nac_openood.files import is_folder, mode_of
from nac_openood.records import from_values
from nac_openood.search.alternatives import Known

MANIFEST = "readings.json"
_REQUIRED = ("fit", "id_val", "ood_val")
_FORMAT = 1


@dataclass(frozen=True)
class ReadingSet:
    """What `search` takes, and where it comes from.

    Args:
        fit: readings of the fitting subset.
        id_val: readings of ID validation samples.
        ood_val: readings of OOD validation samples, real or surrogate.
        held_out: readings of training samples that are not in `fit`, or None.
        about: JSON values that say how they were made; `ood_val: {surrogate: true}` marks
            surrogates.
    """

    fit: Readings
    id_val: Readings
    ood_val: Readings
    held_out: Optional[Readings] = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def roles(self) -> dict[str, Readings]:
        """The sets by role, as keywords of `search`."""
        found = {role: getattr(self, role) for role in (*_REQUIRED, "held_out")}
        return {role: readings for role, readings in found.items() if readings is not None}

    @property
    def surrogate(self) -> bool:
        """Whether the OOD validation set is made of in-distribution images."""
        return bool(self.about.get("ood_val", {}).get("surrogate", False))

    @property
    def known(self) -> Known:
        """Which layers serve the alternatives; nothing is known without a note."""
        return from_values(Known, self.about.get("known") or {})

    def save(self, folder: Union[str, Path]) -> None:
        """Write the set into a folder, which is created."""
        target = prepare_folder(folder)
        for role, readings in self.roles.items():
            readings.save(target / f"{role}.safetensors")
        write_manifest(target, list(self.roles), self.about)

    @classmethod
    def load(cls, path: Union[str, Path]) -> ReadingSet:
        """Map the set in a folder into memory; any file of the folder may be named instead."""
        folder = Path(path) if is_folder(path) else Path(path).parent
        if not mode_of(path):
            raise FileError(f"there is no {path}: expected a folder of saved readings.")
        again = "Read the network and save its readings again"
        noted = files.read_document(
            folder / MANIFEST, _FORMAT, partial(from_values, _Manifest),
            again=again, missing=f"{folder} holds no complete set of readings: {MANIFEST}, which "
            f"is written last, is missing. {again}",
        )  # fmt: skip
        paths = {role: folder / f"{role}.safetensors" for role in noted.roles}
        found = {role: Readings.load(path) for role, path in paths.items()}
        moved = [
            r for r, seal in noted.checksums.items() if tensor_files.checksum_in(paths[r]) != seal
        ]
        if moved:
            raise FileError(
                f"{paths[moved[0]]} is not the file that was saved as '{moved[0]}'. {again}."
            )
        _refuse_strangers(folder, found)
        loaded = cls(**found, about=noted.about)
        named = [loaded.known.head_input or "", *loaded.known.early]
        unread = [name for name in named if name and name not in loaded.fit]
        if unread:
            raise FileError(
                f"{folder / MANIFEST} is damaged: it names the layer '{unread[0]}', which was not "
                f"read. {again}."
            )
        return loaded


def prepare_folder(folder: Union[str, Path]) -> Path:
    """Create a folder to keep readings in; a set that lies there counts as incomplete now."""
    target = files.make_folder(folder)
    files.remove(target / MANIFEST)
    return target


def write_manifest(folder: Path, roles: list[str], about: Mapping[str, Any]) -> None:
    """Declare the set in `folder` complete."""
    checksums = {role: tensor_files.checksum_in(folder / f"{role}.safetensors") for role in roles}
    document = {"roles": roles, "about": dict(about), "checksums": checksums}
    files.write_document(folder / MANIFEST, _FORMAT, document)


@dataclass(frozen=True)
class _OodVal:
    name: str = ""
    surrogate: bool = False


@dataclass(frozen=True)
class _Origin:
    """The entries of `about` that something depends on, where they are there."""

    ood_val: _OodVal = field(default_factory=_OodVal)
    known: Known = field(default_factory=Known)
    samples: Mapping[str, int] = field(default_factory=dict)
    accuracy: float = 0.0
    id_data: Optional[str] = None
    family: Optional[str] = None


@dataclass(frozen=True)
class _Manifest:
    """Roles, origin, and the checksums of the files by role; early ones have none."""

    roles: tuple[str, ...]
    about: Mapping[str, Any]
    checksums: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lacking = [role for role in _REQUIRED if role not in self.roles]
        unknown = [role for role in self.roles if role not in (*_REQUIRED, "held_out")]
        unknown += [role for role in self.checksums if role not in self.roles]
        if lacking or unknown:
            raise NACError(f"it does not name {lacking}" if lacking else f"unknown roles {unknown}")
        noted = {f.name: self.about[f.name] for f in fields(_Origin) if f.name in self.about}
        from_values(_Origin, noted, "about")


def _refuse_strangers(folder: Path, found: Mapping[str, Readings]) -> None:
    """Raise if the files of a folder are readings of different layers or networks."""
    first = next(iter(found))
    for role, readings in found.items():
        differs = readings.differs_from(found[first])
        if differs:
            raise FileError(
                f"{folder}: {role}.safetensors is of another network than {first}.safetensors "
                f"({differs}). Read the network and save its readings again."
            )
