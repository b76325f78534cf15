"""Networks by description: the table of the forms that `arch` can have."""

from __future__ import annotations

from typing import Optional

from torch import nn

from nac_openood.errors import NACError
from nac_openood.sources.checkpoints import PUBLISHED
from nac_openood.sources.hugging_face import HuggingFace
from nac_openood.sources.network_kind import NetworkKind
from nac_openood.sources.package_networks import PackageNetworks
from nac_openood.sources.programs import ExportedPrograms
from nac_openood.sources.timm_networks import TimmNetworks
from nac_openood.sources.torchvision_networks import TorchvisionNetworks
from nac_openood.sources.user_networks import UserNetworks
from nac_openood.sources.weights import load_checkpoint

#: The first that recognizes its form takes it; `timm:resnet18` has the form of code, too.
_KINDS: tuple[NetworkKind, ...] = (
    PackageNetworks(),
    TimmNetworks(),
    HuggingFace(),
    ExportedPrograms(),
    UserNetworks(),
    TorchvisionNetworks(),
)


def kind_of(arch: str) -> NetworkKind:
    """The kind of network that `arch` describes.

    Args:
        arch: `resnet18_32x32` (OpenOOD's for CIFAR), `resnet_embedded` or `vit_embedded` (small
            ones for the embedded benchmark), a torchvision classifier such as `resnet50`,
            `timm:NAME`, `hf:NAME-OR-FOLDER`, `FILE.pt2` of torch.export, or code of the user's,
            `package.module:factory` or `path/to/file.py:factory`, which is run.
    """
    for kind in _KINDS:
        if kind.is_mine(arch):
            return kind
    if arch.endswith(".py"):
        raise NACError(
            f"expected a name after the file {arch}: the function, class or network in it, as in "
            f"{arch}:make."
        )
    forms = "; ".join(kind.form for kind in _KINDS)
    raise NACError(
        f"unknown architecture '{arch}'. Expected one of: {forms}. "
        "torchvision.models.list_models() names all of torchvision's."
    )


def build(arch: str, n_classes: int) -> nn.Module:
    """A network, in evaluation mode and, where it does not come with weights, with random ones.

    Args:
        arch: as in `kind_of`.
        n_classes: number of classes.
    """
    return kind_of(arch).build(arch, n_classes)


def network_of(arch: str, n_classes: int, weights: Optional[str] = None) -> nn.Module:
    """A network with weights, in evaluation mode.

    Args:
        arch: as in `kind_of`.
        n_classes: number of classes. Networks that come with weights keep their own number.
        weights: a checkpoint file, or `torchvision:NAME` for published ones; None takes those that
            the network comes with.
    """
    kind = kind_of(arch)
    if weights is None or weights.startswith(PUBLISHED):
        return kind.with_weights(arch, n_classes, weights)
    return load_checkpoint(kind.build(arch, n_classes), weights)
