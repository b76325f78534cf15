"""timm's networks: `timm:NAME`, with weights from a file or those that timm publishes."""

from __future__ import annotations

from typing import Any, Optional

from torch import nn

from nac_openood.errors import NACError, first_line
from nac_openood.sources.images import Transform
from nac_openood.sources.network_kind import NetworkKind

_PREFIX = "timm:"


class TimmNetworks(NetworkKind):
    """Networks of timm."""

    form = "timm:NAME"
    by_name = True

    def is_mine(self, arch: str) -> bool:
        """Whether `arch` is written as `timm:NAME`."""
        return arch.startswith(_PREFIX)

    def build(self, arch: str, n_classes: int) -> nn.Module:
        """The network with random weights, in evaluation mode."""
        net: nn.Module = _timm(arch).create_model(
            _name(arch), pretrained=False, num_classes=n_classes
        )
        return net.eval()

    def with_weights(self, arch: str, n_classes: int, weights: Optional[str]) -> nn.Module:
        """The network as timm publishes it, with the classes that it was trained on."""
        timm = _timm(arch)
        if weights is not None:
            raise NACError(f"expected a checkpoint file for {arch}, got '{weights}'.")
        if not timm.is_model_pretrained(_name(arch)):
            raise NACError(f"timm publishes no weights of '{_name(arch)}'. Pass a checkpoint file.")
        try:
            net: nn.Module = timm.create_model(_name(arch), pretrained=True)
        except Exception as error:  # of the download, which has many ways to fail
            raise NACError(
                f"the weights of {arch} cannot be downloaded ({type(error).__name__}: "
                f"{first_line(error)}). Download them on a machine with internet "
                "access and pass the file."
            ) from error
        return net.eval()

    def transform(self, arch: str, weights: Optional[str]) -> Optional[Transform]:
        """The transform that timm names for the network."""
        timm = _timm(arch)
        config = timm.get_pretrained_cfg(_name(arch))
        wanted = timm.data.resolve_data_config(
            {}, pretrained_cfg=config.to_dict() if config else {}
        )
        return timm.data.create_transform(**wanted, is_training=False)

    def transforms(self, benchmark: str) -> bool:
        """ImageNet, its 200 classes included."""
        return benchmark.startswith("imagenet")


def _name(arch: str) -> str:
    return arch[len(_PREFIX) :]


def _timm(arch: str) -> Any:
    """The module timm, if it has a model of this name."""
    try:
        import timm
    except ImportError:
        raise NACError(
            f"'{arch}' needs timm, which is not installed: pip install 'nac-openood[timm]'."
        ) from None
    name = _name(arch)
    if not timm.is_model(name):
        raise NACError(f"timm has no model '{name}'. See timm.list_models('*{name[:6]}*').")
    return timm
