"""The readings of a search, by role, stored in a folder, and the result of a search as files.

A folder of readings holds a safetensors file for each role and `readings.json`, which is written
last: without it the set is not complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Mapping, Optional, Union

import yaml

from nac_openood import files, tensor_files
from nac_openood.__about__ import __version__
from nac_openood.detector.readings import Readings
from nac_openood.errors import FileError, NACError
from nac_openood.records import from_values
from nac_openood.search.advise import Advice, AlternativeLayers
from nac_openood.search.loaders import SURROGATE_LABEL
from nac_openood.search.run import SearchResult

MANIFEST = "readings.json"
_REQUIRED = ("fit", "id_val", "ood_val")
_ROLES = (*_REQUIRED, "held_out")
_FORMAT = 1
_AGAIN = "Read the network and save its readings again"


@dataclass(frozen=True)
class ReadingSet:
    """The readings that `search` takes, and where they come from.

    Args:
        fit: readings of the fitting subset.
        id_val: readings of ID validation samples.
        ood_val: readings of OOD validation samples, real or surrogate.
        held_out: readings of training samples that are not in `fit`, or None.
        about: how they were made, as JSON values; `ood_val: {surrogate: true}` marks surrogates.
    """

    fit: Readings
    id_val: Readings
    ood_val: Readings
    held_out: Optional[Readings] = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def roles(self) -> dict[str, Readings]:
        """The sets by role, as keywords of `search`."""
        return {role: getattr(self, role) for role in _ROLES if getattr(self, role) is not None}

    @property
    def surrogate(self) -> bool:
        """Whether the OOD validation set is made from in-distribution images."""
        return bool(self.about.get("ood_val", {}).get("surrogate", False))

    @property
    def alternative_layers(self) -> AlternativeLayers:
        """Which layers the alternatives of `advise` can use; none if `about` does not say."""
        return from_values(AlternativeLayers, self.about.get("known") or {})

    def save(self, folder: Union[str, Path]) -> None:
        """Write the set into a folder, which is created."""
        target = prepare_folder(folder)
        for role, readings in self.roles.items():
            readings.save(target / f"{role}.safetensors")
        write_manifest(target, list(self.roles), self.about)

    @classmethod
    def load(cls, path: Union[str, Path]) -> ReadingSet:
        """Memory-map the set in a folder; `path` is the folder or any file in it."""
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
        if not Path(path).exists():
            raise FileError(f"there is no {path}: expected a folder of saved readings.")
        manifest = files.read_document(
            folder / MANIFEST, _FORMAT, partial(from_values, _Manifest), again=_AGAIN,
            missing=f"{folder} holds no complete set of readings: {MANIFEST}, which is written "
            f"last, is missing. {_AGAIN}",
        )  # fmt: skip
        found = {}
        for role in manifest.roles:
            file = folder / f"{role}.safetensors"
            found[role] = Readings.load(file)
            saved = manifest.checksums.get(role)
            if saved is not None and tensor_files.checksum_in(file) != saved:
                raise FileError(f"{file} is not the file that was saved as '{role}'. {_AGAIN}.")
            differs = found[role].differs_from(found[manifest.roles[0]])
            if differs:
                raise FileError(
                    f"{folder}: {role}.safetensors is of another network than "
                    f"{manifest.roles[0]}.safetensors ({differs}). {_AGAIN}."
                )
        loaded = cls(**found, about=manifest.about)
        layers = loaded.alternative_layers
        for name in (layers.head_input, *layers.early):
            if name and name not in loaded.fit:
                raise FileError(
                    f"{folder / MANIFEST} is damaged: it names the layer '{name}', which was not "
                    f"read. {_AGAIN}."
                )
        return loaded


def prepare_folder(folder: Union[str, Path]) -> Path:
    """Create a folder for readings; marks a set that is already there as incomplete."""
    target = files.make_folder(folder)
    files.remove(target / MANIFEST)
    return target


def write_manifest(folder: Path, roles: list[str], about: Mapping[str, Any]) -> None:
    """Write the manifest, which marks the set in `folder` as complete."""
    checksums = {role: tensor_files.checksum_in(folder / f"{role}.safetensors") for role in roles}
    document = {"roles": roles, "about": dict(about), "checksums": checksums}
    files.write_document(folder / MANIFEST, _FORMAT, document)


@dataclass(frozen=True)
class _OodVal:
    name: str = ""
    surrogate: bool = False


@dataclass(frozen=True)
class _Origin:
    """The entries of `about` that results depend on, all of them optional."""

    ood_val: _OodVal = field(default_factory=_OodVal)
    known: AlternativeLayers = field(default_factory=AlternativeLayers)
    samples: Mapping[str, int] = field(default_factory=dict)
    accuracy: float = 0.0
    id_data: Optional[str] = None
    family: Optional[str] = None


@dataclass(frozen=True)
class _Manifest:
    """Roles, origin, and the checksums of the files by role, which early manifests do not have."""

    roles: tuple[str, ...]
    about: Mapping[str, Any]
    checksums: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        missing = [role for role in _REQUIRED if role not in self.roles]
        unknown = [role for role in self.roles if role not in _ROLES]
        unknown += [role for role in self.checksums if role not in self.roles]
        if missing or unknown:
            raise NACError(f"it does not name {missing}" if missing else f"unknown roles {unknown}")
        origin = {f.name: self.about[f.name] for f in fields(_Origin) if f.name in self.about}
        from_values(_Origin, origin, "about")


# -- the result of a search as files --------------------------------------------------------


def write_config(path: Path, result: SearchResult, about: Mapping[str, Any]) -> None:
    """Write the best settings as YAML for `read_config` and OpenOOD, with comments."""
    best = result.best
    against = about.get("ood_val", {}).get("name", "the given OOD validation set")
    guard = "not measured" if best.guard is None else f"{best.guard:.2%}"
    comments = [
        f"Chosen by nac_openood {__version__} search: {result.strategy}, {result.objective}, "
        f"{result.evaluated} joint points.",
        f"Validation against {against}: AUROC {best.auroc:.2%}, FPR@95 {best.fpr95:.2%} (OOD "
        f"found) and {best.fpr95_in:.2%} (ID kept), guard {guard} (near 50% is good).",
    ]
    if result.surrogate:
        comments.append(f"Note: {SURROGATE_LABEL}.")
    body = yaml.safe_dump(result.to_config().to_dict(), sort_keys=False)
    files.write_text(path, "".join(f"# {line}\n" for line in comments) + body)


def write_report(
    path: Path,
    result: SearchResult,
    about: Mapping[str, Any],
    settings: Mapping[str, Any],
    advice: Optional[Advice] = None,
) -> None:
    """Write ranking, landscape, guard values, settings, versions and advice as JSON."""
    landscape = [{"layer": p.layer, **p.config.to_dict(), **p.numbers()} for p in result.landscape]
    for point in landscape:
        del point["weight"]  # makes no difference for a layer by itself
    document = {
        "format": 1,
        "warning": SURROGATE_LABEL if result.surrogate else None,
        "settings": dict(settings),
        "data": dict(about),
        "versions": tensor_files.versions(),
        "evaluated": result.evaluated,
        "seconds": round(result.seconds, 3),
        "guard": result.guard,
        "advice": None if advice is None else advice.to_dict(),
        "ranking": [
            {"layers": {n: c.to_dict() for n, c in entry.layers.items()}, **entry.numbers()}
            for entry in result.ranking
        ],
        "landscape": landscape,
    }
    files.write_json(path, document)
