"""Domains in image folders, by the roles they have in a ranking."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional, Sequence, Union

from nac_openood.errors import NACError
from nac_openood.sources.images import Transform
from nac_openood.sources.readers import DomainFolder, domain_classes, domain_folders, split_domain

Paths = Sequence[Union[str, Path]]


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
    """The domains in these folders, as keywords of `rank_checkpoints`, and their classes.

    Args:
        train: a folder `domain/class/image` for each source domain.
        val: the same with validation data; None holds out 20 % of each training domain, as
            DomainBed does.
        test: folders of target domains, or None.
        transform: turns an image into a tensor.
        trial: seeds the split, where `val` is None.
    """
    given = {"train": train, "val": val or (), "test": test or ()}
    paths = [Path(path) for entries in given.values() for path in entries]
    classes = domain_classes(paths)
    roles: dict[str, Any] = {}
    for role, entries in given.items():
        roles[role] = {}
        for path in map(Path, entries):
            if path.resolve().name in roles[role]:
                raise NACError(
                    f"`{role}`: two domains are called {path.resolve().name}. Rename a folder."
                )
            roles[role][path.resolve().name] = DomainFolder(path, classes, transform)
    if not val:
        for path, (name, data) in zip(map(Path, train), list(roles["train"].items())):
            index = list(domain_folders(path.resolve().parent)).index(name)
            roles["train"][name], roles["val"][name] = split_domain(data, trial, index)
    return roles, classes
