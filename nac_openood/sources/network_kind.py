"""What this package must know of a kind of network, such as timm's, to load one by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Optional

from torch import nn

from nac_openood.errors import NACError
from nac_openood.sources.images import Transform


class NetworkKind(ABC):
    """Loads one kind of network.

    Attributes:
        form: how to write it, for errors.
        by_name: whether a name alone says which network is meant, without code or files of the
            user's.
    """

    form = ""
    by_name = False

    @abstractmethod
    def is_mine(self, arch: str) -> bool:
        """Whether `arch` has the form of this kind."""

    @abstractmethod
    def build(self, arch: str, n_classes: int) -> nn.Module:
        """The network in evaluation mode, for weights to be loaded into."""

    def with_weights(self, arch: str, n_classes: int, weights: Optional[str]) -> nn.Module:
        """The network with published weights; None takes its own, where it comes with any."""
        if weights is not None:
            raise NACError(f"expected a checkpoint file for {arch}, got '{weights}'.")
        return self.build(arch, n_classes)

    def transform(self, arch: str, weights: Optional[str]) -> Optional[Transform]:
        """How the network's own configuration turns an image into its input; None if unknown."""
        return None

    def transforms(self, benchmark: str) -> bool:
        """Whether images of this benchmark of OpenOOD's are for `transform` rather than its own."""
        return False

    def classes(self, arch: str, weights: Optional[str]) -> tuple[str, ...]:
        """The names of the classes in the order of the logits; empty if they are not known."""
        return ()
