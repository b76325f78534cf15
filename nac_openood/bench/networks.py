"""Networks by name and their checkpoints."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any, Mapping, Union

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from nac_openood.bench.images import Transform
from nac_openood.bench.imglist import Benchmark
from nac_openood.errors import NACError

#: What a key may begin with when a wrapped network was saved.
_PREFIXES = ("module.", "_orig_mod.")
_SHOWN = 4


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; `stride` divides height and width."""

    def __init__(self, wide_in: int, wide: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(wide_in, wide, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(wide)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(wide)
        self.shortcut = nn.Sequential()
        if stride != 1 or wide_in != wide:
            self.shortcut = nn.Sequential(
                nn.Conv2d(wide_in, wide, 1, stride, bias=False), nn.BatchNorm2d(wide)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


def _stage(wide_in: int, wide: int, stride: int) -> nn.Sequential:
    return nn.Sequential(ResidualBlock(wide_in, wide, stride), ResidualBlock(wide, wide, 1))


class CifarResNet18(nn.Module):
    """ResNet-18 for 32x32 images, with the parameter names of OpenOOD's checkpoints."""

    def __init__(self, n_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(64, 64, 1)
        self.layer2 = _stage(64, 128, 2)
        self.layer3 = _stage(128, 256, 2)
        self.layer4 = _stage(256, 512, 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[batch, classes]` of images `[batch, 3, 32, 32]`."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def build(arch: str, n_classes: int) -> nn.Module:
    """A network by name, in evaluation mode, with random weights.

    Args:
        arch: `resnet18_32x32` (OpenOOD's for CIFAR), a torchvision classifier such as `resnet50`,
            `vit_b_16` or `swin_t`, or `timm:NAME`.
        n_classes: of its head.
    """
    if arch == "resnet18_32x32":
        return CifarResNet18(n_classes).eval()
    if arch.startswith("timm:"):
        return _timm(arch[len("timm:") :], n_classes)
    if arch not in _classifiers():
        raise NACError(
            f"unknown architecture '{arch}'. Expected 'resnet18_32x32', a torchvision classifier "
            "(resnet50, vit_b_16, swin_t, ...; all: torchvision.models.list_models()), or "
            "'timm:NAME'."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of GoogLeNet and Inception, about random weights
        net: nn.Module = torchvision.models.get_model(arch, weights=None, num_classes=n_classes)
    return net.eval()


def _classifiers() -> list[str]:
    names: list[str] = torchvision.models.list_models(module=torchvision.models)
    return names


def _timm(name: str, n_classes: int) -> nn.Module:
    try:
        import timm
    except ImportError:
        raise NACError(
            f"'timm:{name}' needs timm, which is not installed: pip install 'nac-openood[timm]'."
        ) from None
    if not timm.is_model(name):
        raise NACError(f"timm has no model '{name}'. See timm.list_models('*{name[:6]}*').")
    net: nn.Module = timm.create_model(name, pretrained=False, num_classes=n_classes)
    return net.eval()


def transform_for(arch: str, benchmark: Benchmark) -> Transform:
    """The test transform: OpenOOD's, which for torchvision's ImageNet networks is their own."""
    if benchmark.name == "imagenet" and arch in _classifiers():
        weights = getattr(torchvision.models.get_model_weights(arch), "IMAGENET1K_V1", None)
        if weights is not None:
            own: Transform = weights.transforms()
            return own
    return benchmark.transform()


def load_checkpoint(net: nn.Module, path: Union[str, Path]) -> nn.Module:
    """Load weights into `net`; the file may not hold code (`weights_only`).

    A state dict as it is or under `state_dict`, with or without the prefix `module.` that
    `DataParallel` leaves.

    Raises:
        NACError: where the file is missing or damaged, or does not fit: it names the keys.
    """
    state = {_bare(key): value for key, value in _read_state(Path(path)).items()}
    wanted = net.state_dict()
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
            f"{path} does not fit {type(net).__name__}: {'; '.join(found)}. Expected the weights "
            "of this architecture with this number of classes: check --arch and --id-data."
        )
    net.load_state_dict(state)
    return net.eval()


def _read_state(path: Path) -> Mapping[str, Tensor]:
    if not path.is_file():
        raise NACError(f"there is no checkpoint {path}.")
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise NACError(
            f"{path} holds more than tensors, and is not loaded because it could run code: save "
            f"net.state_dict() instead ({str(error).splitlines()[0]})."
        ) from error
    except (RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise NACError(f"{path} is damaged or not a checkpoint ({error}).") from error
    for key in ("state_dict", "model"):
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
