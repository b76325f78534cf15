"""The networks of this package by name."""

from __future__ import annotations

from typing import Callable, Mapping, Optional

from torch import nn

from nac_openood.errors import NACError
from nac_openood.sources.images import Transform
from nac_openood.sources.imglist import BENCHMARKS
from nac_openood.sources.network_kind import NetworkKind
from nac_openood.sources.small_networks import CifarResNet18, SmallResNet, small_vit

_NETWORKS: Mapping[str, Callable[[int], nn.Module]] = {
    "resnet18_32x32": CifarResNet18,
    "resnet_embedded": SmallResNet,
    "vit_embedded": small_vit,
}
#: The benchmark that a network was made for. OpenOOD has resnet18_32x32 for two of them.
_MADE_FOR = {"resnet_embedded": "embedded", "vit_embedded": "embedded"}


class PackageNetworks(NetworkKind):
    """The networks of this package."""

    form = " or ".join(_NETWORKS)
    by_name = True

    def is_mine(self, arch: str) -> bool:
        """Whether this package has a network of that name."""
        return arch in _NETWORKS

    def build(self, arch: str, n_classes: int) -> nn.Module:
        """The network with random weights, in evaluation mode."""
        return _NETWORKS[arch](n_classes).eval()

    def with_weights(self, arch: str, n_classes: int, weights: Optional[str]) -> nn.Module:
        """Refused: nobody publishes weights of these."""
        raise NACError(f"there are no published weights of '{arch}'. Pass a checkpoint file.")

    def transform(self, arch: str, weights: Optional[str]) -> Optional[Transform]:
        """The transform of the benchmark that the network was made for, where that is one."""
        name = _MADE_FOR.get(arch)
        return None if name is None else BENCHMARKS[name].transform()
