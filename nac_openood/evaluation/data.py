"""The domains that checkpoints are ranked with, by role."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Mapping, Optional

from nac_openood.errors import NACError
from nac_openood.sources.samples import Samples
from nac_openood.sources.sets import check_file_names, check_mapping

ROLES = ("train", "val", "test", "oracle")


@dataclass(frozen=True)
class Domains:
    """Labeled data by role and domain: map-style datasets or `DataLoader`s, without augmentation.

    Args:
        train: training data of the source domains, on which coverage is counted.
        val: held-out data of the source domains.
        test: data of the target domains; empty if there is none.
        oracle: other data of the target domains, by which the oracle chooses; empty if it chooses
            by the test data itself.
        batch_size: samples per batch.
        workers: number of processes that load samples.
        progress: whether to show progress bars; None shows them on a terminal.
    """

    train: Mapping[str, Any]
    val: Mapping[str, Any]
    test: Mapping[str, Any] = field(default_factory=dict)
    oracle: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 100
    workers: int = 0
    progress: Optional[bool] = None

    def __post_init__(self) -> None:
        for role in ROLES:
            check_mapping(role, getattr(self, role), "names of domains", "sketch")
            check_file_names("a domain", getattr(self, role))
        for role in ("train", "val"):
            if not getattr(self, role):
                raise NACError(f"`{role}` has no domain: expected at least one.")
        if self.oracle and not self.test:
            raise NACError("`oracle` needs `test`: there is no target domain to test on.")
        _ = self.samples  # an empty dataset is refused at once

    @cached_property
    def samples(self) -> dict[tuple[str, str], Samples]:
        """Everything that is read, by role and name of the domain."""
        return {
            (role, name): Samples(
                f"{role} domain {name}", data, batch_size=self.batch_size, workers=self.workers,
                progress=self.progress,
            )
            for role in ROLES
            for name, data in getattr(self, role).items()
        }  # fmt: skip

    def check(self, n_classes: int) -> None:
        """Refuse data without labels, or with labels that are no classes of the network."""
        for samples in self.samples.values():
            samples.check_labels(n_classes)

    def identities(self) -> dict[str, str]:
        """A text for each role and domain that changes with its samples."""
        return {"/".join(key): samples.identity for key, samples in self.samples.items()}

    def sizes(self) -> dict[str, dict[str, int]]:
        """Number of samples by role and domain."""
        found: dict[str, dict[str, int]] = {}
        for (role, name), samples in self.samples.items():
            found.setdefault(role, {})[name] = len(samples)
        return found
