"""torchvision's classifiers, with weights from a file or published ones."""

from __future__ import annotations

import warnings
from typing import Any, Optional

from torch import nn

from nac_openood.errors import NACError
from nac_openood.sources.checkpoints import PUBLISHED
from nac_openood.sources.images import Transform
from nac_openood.sources.network_kind import NetworkKind


class TorchvisionNetworks(NetworkKind):
    """Classifiers of torchvision."""

    form = "a torchvision classifier (resnet50, vit_b_16, swin_t, ...)"
    by_name = True

    def is_mine(self, arch: str) -> bool:
        """Whether torchvision has a classifier of this name."""
        import torchvision

        return arch in torchvision.models.list_models(module=torchvision.models)

    def build(self, arch: str, n_classes: int) -> nn.Module:
        """The network with random weights, in evaluation mode."""
        import torchvision

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of GoogLeNet and Inception, about random weights
            net: nn.Module = torchvision.models.get_model(arch, weights=None, num_classes=n_classes)
        return net.eval()

    def with_weights(self, arch: str, n_classes: int, weights: Optional[str]) -> nn.Module:
        """The network with weights that torchvision publishes, `torchvision:NAME`."""
        import torchvision

        name = _name(weights)
        known = [entry.name for entry in torchvision.models.get_model_weights(arch)]
        if name not in known:
            got = "none were given" if name is None else f"not '{name}'"
            raise NACError(
                f"which weights of {arch}? torchvision publishes {known}; {got}. Pass a checkpoint "
                f"file, or e.g. '{PUBLISHED}{(known or ['NAME'])[0]}'."
            )
        try:
            net: nn.Module = torchvision.models.get_model(arch, weights=name)
        except OSError as error:  # of the download; the cache is $TORCH_HOME
            raise NACError(
                f"the weights {name} of {arch} cannot be downloaded ({error}). Download them on a "
                "machine with internet access and pass the file."
            ) from error
        if n_classes != 1000:
            raise NACError(f"{weights} has 1000 classes, not {n_classes}. Pass a checkpoint file.")
        return net.eval()

    def transform(self, arch: str, weights: Optional[str]) -> Optional[Transform]:
        """The transform of the published weights, of version 1 for a checkpoint file."""
        entry = _entry(arch, weights)
        return None if entry is None else entry.transforms()

    def transforms(self, benchmark: str) -> bool:
        """ImageNet."""
        return benchmark == "imagenet"

    def classes(self, arch: str, weights: Optional[str]) -> tuple[str, ...]:
        """ImageNet's class names for published weights."""
        entry = _entry(arch, weights) if _name(weights) else None
        return () if entry is None else tuple(entry.meta["categories"])


def _entry(arch: str, weights: Optional[str]) -> Any:
    import torchvision

    published = torchvision.models.get_model_weights(arch)
    return getattr(published, _name(weights) or "IMAGENET1K_V1", None)


def _name(weights: Optional[str]) -> Optional[str]:
    """`IMAGENET1K_V1` of `torchvision:IMAGENET1K_V1`; None of a file."""
    is_published = weights is not None and weights.startswith(PUBLISHED)
    return weights[len(PUBLISHED) :] if is_published and weights else None
