"""The readings a search needs, by role, and a folder to keep them in.

A folder holds a safetensors file for each role and `readings.json`, which is written last: a set
without it is not complete.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Optional, Union

from nac_openood import files
from nac_openood.detector.readings import Readings
from nac_openood.errors import FileError

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

    def save(self, folder: Union[str, Path]) -> None:
        """Write the set into a folder, which is created."""
        target = prepare_folder(folder)
        for role, readings in self.roles.items():
            readings.save(target / f"{role}.safetensors")
        write_manifest(target, list(self.roles), self.about)

    @classmethod
    def load(cls, path: Union[str, Path]) -> ReadingSet:
        """Map the set in a folder into memory; any file of the folder may be named instead."""
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
        if not Path(path).exists():
            raise FileError(f"there is no {path}: expected a folder of saved readings.")
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            roles, about, version = manifest["roles"], manifest["about"], manifest["format"]
        except FileNotFoundError:
            raise FileError(
                f"{folder} holds no complete set of readings: {MANIFEST}, which is written last, "
                "is missing. Read the network and save its readings again."
            ) from None
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise FileError(f"{folder / MANIFEST} is damaged ({error!r}).") from error
        if version > _FORMAT:
            raise FileError(
                f"{folder} has format {version}; this nac_openood reads up to {_FORMAT}. Upgrade "
                "it: pip install -U nac-openood."
            )
        found = {role: Readings.load(folder / f"{role}.safetensors") for role in roles}
        lacking = [role for role in _REQUIRED if role not in found]
        if lacking:
            raise FileError(f"{folder / MANIFEST} is damaged: it does not name {lacking}.")
        return cls(**found, about=about)


def prepare_folder(folder: Union[str, Path]) -> Path:
    """Create a folder to keep readings in; a set that lies there counts as incomplete now."""
    target = files.make_folder(folder)
    (target / MANIFEST).unlink(missing_ok=True)
    return target


def write_manifest(folder: Path, roles: list[str], about: Mapping[str, Any]) -> None:
    """Declare the set in `folder` complete."""
    document = {"format": _FORMAT, "roles": roles, "about": dict(about)}
    files.write_text(folder / MANIFEST, json.dumps(document, indent=2) + "\n")
