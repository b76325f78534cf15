"""Networks by name, their weights and their transforms."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any, Callable, Mapping, Union

import torch
from torch import Tensor, nn

from nac_openood.errors import NACError
from nac_openood.sources.checkpoints import PUBLISHED
from nac_openood.sources.domainbed import allowed_content, plain_state
from nac_openood.sources.images import Transform
from nac_openood.sources.imglist import Benchmark
from nac_openood.sources.small_networks import CifarResNet18, SmallResNet, small_vit

#: Prefixes of the keys of a wrapped network.
_PREFIXES = ("module.", "_orig_mod.")
_SHOWN = 4
#: Networks of this package by name; all others are torchvision's or timm's.
_OWN: Mapping[str, Callable[[int], nn.Module]] = {
    "resnet18_32x32": CifarResNet18,
    "resnet_embedded": SmallResNet,
    "vit_embedded": small_vit,
}

__all__ = ["CifarResNet18", "build", "load_checkpoint", "network_of", "transform_for"]


def build(arch: str, n_classes: int) -> nn.Module:
    """A network by name, in evaluation mode, with random weights.

    Args:
        arch: `resnet18_32x32` (OpenOOD's for CIFAR), `resnet_embedded` or `vit_embedded` (small
            ones for the embedded benchmark), a torchvision classifier such as `resnet50`,
            `vit_b_16` or `swin_t`, or `timm:NAME`.
        n_classes: number of classes.
    """
    if arch in _OWN:
        return _OWN[arch](n_classes).eval()
    if arch.startswith("timm:"):
        return _timm(arch[len("timm:") :], n_classes)
    import torchvision

    if arch not in _classifiers():
        raise NACError(
            f"unknown architecture '{arch}'. Expected one of {list(_OWN)}, a torchvision "
            "classifier (resnet50, vit_b_16, swin_t, ...; all: torchvision.models.list_models()), "
            "or 'timm:NAME'."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of GoogLeNet and Inception, about random weights
        net: nn.Module = torchvision.models.get_model(arch, weights=None, num_classes=n_classes)
    return net.eval()


def _classifiers() -> list[str]:
    import torchvision

    return torchvision.models.list_models(module=torchvision.models)


def _timm_module(name: str) -> Any:
    """The module timm, if it has a model of this name."""
    try:
        import timm
    except ImportError:
        raise NACError(
            f"'timm:{name}' needs timm, which is not installed: pip install 'nac-openood[timm]'."
        ) from None
    if not timm.is_model(name):
        raise NACError(f"timm has no model '{name}'. See timm.list_models('*{name[:6]}*').")
    return timm


def _timm(name: str, n_classes: int) -> nn.Module:
    timm = _timm_module(name)
    net: nn.Module = timm.create_model(name, pretrained=False, num_classes=n_classes)
    return net.eval()


def network_of(arch: str, n_classes: int, weights: str) -> nn.Module:
    """A network with weights: a checkpoint file, or `torchvision:NAME` for published ones."""
    if not weights.startswith(PUBLISHED):
        return load_checkpoint(build(arch, n_classes), weights)
    import torchvision

    name = weights[len(PUBLISHED) :]
    if arch not in _classifiers():
        raise NACError(f"torchvision publishes no weights of '{arch}'. Pass a checkpoint file.")
    known = [entry.name for entry in torchvision.models.get_model_weights(arch)]
    if name not in known:
        raise NACError(f"torchvision publishes {known} of {arch}, not '{name}'.")
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


def transform_for(arch: str, benchmark: Benchmark, weights: str = "") -> Transform:
    """The test transform: OpenOOD's, or for torchvision's and timm's ImageNet networks their own.

    Args:
        arch: as in `build`.
        benchmark: the benchmark of the images.
        weights: `torchvision:NAME` takes the transform of these weights, a file that of version 1.
    """
    if arch.startswith("timm:") and benchmark.name.startswith("imagenet"):
        return _timm_transform(arch[len("timm:") :])
    if benchmark.name == "imagenet" and arch in _classifiers():
        import torchvision

        name = weights[len(PUBLISHED) :] if weights.startswith(PUBLISHED) else "IMAGENET1K_V1"
        found = getattr(torchvision.models.get_model_weights(arch), name, None)
        if found is not None:
            return found.transforms()
    return benchmark.transform()


def _timm_transform(name: str) -> Transform:
    """The transform that timm names for the network."""
    timm = _timm_module(name)
    config = timm.get_pretrained_cfg(name)
    wanted = timm.data.resolve_data_config({}, pretrained_cfg=config.to_dict() if config else {})
    return timm.data.create_transform(**wanted, is_training=False)


def load_checkpoint(net: nn.Module, path: Union[str, Path]) -> nn.Module:
    """Load a checkpoint into `net`, in evaluation mode; code in the file is not run.

    The file holds a state dict, alone or under `state_dict`, with or without the prefix `module.`
    that `DataParallel` adds; or a checkpoint of DomainBed with a linear classifier.

    Raises:
        NACError: the file is missing or damaged, or does not fit; the message names the keys.
    """
    state = {_bare(key): value for key, value in _read_state(Path(path)).items()}
    wanted = net.state_dict()
    state = dict(plain_state(state, wanted))
    missing = [key for key in wanted if key not in state]
    unexpected = [key for key in state if key not in wanted]
    shapes = [
        f"{key} {list(state[key].shape)} instead of {list(value.shape)}"
        for key, value in wanted.items()
        if key in state and state[key].shape != value.shape
    ]
    problems = {"missing": missing, "unexpected": unexpected, "of another shape": shapes}
    found = [f"{what}: {_some(keys)}" for what, keys in problems.items() if keys]
    if found:
        raise NACError(
            f"{path} does not fit {type(net).__name__}: {'; '.join(found)}. Expected weights of "
            "this architecture with this number of classes: check `arch` and the data."
        )
    net.load_state_dict(state)
    return net.eval()


def _read_state(path: Path) -> Mapping[str, Tensor]:
    if not path.is_file():
        raise NACError(f"there is no checkpoint {path}.")
    try:
        with allowed_content():
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise NACError(
            f"{path} holds more than tensors and is not loaded, because it could run code. Save "
            "net.state_dict() instead; of a DomainBed checkpoint that you trust, its 'model_dict' "
            f"alone ({str(error).splitlines()[0]})."
        ) from error
    except (RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise NACError(f"{path} is damaged or not a checkpoint ({error}).") from error
    for key in ("state_dict", "model_state_dict", "model_dict", "model", "net"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in content.values()):
        raise NACError(
            f"{path}: expected a state dict of tensors, or {{'state_dict': ...}}; got "
            f"{sorted(content) if isinstance(content, Mapping) else type(content).__name__}."
        )
    return content


def _bare(key: str) -> str:
    while key.startswith(_PREFIXES):
        key = key.split(".", 1)[1]
    return key


def _some(keys: list[str]) -> str:
    more = len(keys) - _SHOWN
    return ", ".join(keys[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
