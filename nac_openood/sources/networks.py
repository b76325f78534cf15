"""Builds networks from a text `arch`: the forms that it can have, and how each is loaded."""

from __future__ import annotations

import hashlib
import importlib
import json
import textwrap
import warnings
from pathlib import Path
from typing import Any, Callable, Mapping, Optional

import torchvision
from PIL import Image
from torch import Tensor, nn, tensor
from torch.nn import functional as F

from nac_openood.errors import NACError, first_line
from nac_openood.sources.checkpoints import PUBLISHED, load_checkpoint
from nac_openood.sources.code import call_code, is_code
from nac_openood.sources.images import Transform
from nac_openood.sources.programs import load_program

_MAX_TOKENS = 512
#: The usual suffixes of TorchScript files.
_SCRIPTS = (".pt", ".pth", ".ts", ".torchscript", ".jit")
_PASS_FILE = "Pass a checkpoint file."


def kind_of(arch: str) -> NetworkKind:
    """What kind of network `arch` describes.

    Args:
        arch: `resnet18_32x32` (OpenOOD's for CIFAR), `resnet_embedded` or `vit_embedded` (small
            ones for the embedded benchmark), a torchvision classifier such as `resnet50`,
            `timm:NAME`, `hf:NAME-OR-FOLDER`, `FILE.pt2` of torch.export, or the user's code,
            `package.module:factory` or `path/to/file.py:factory`, which is run.
    """
    for kind in _KINDS:
        if kind.matches(arch):
            return kind(arch)
    if Path(arch).suffix == ".py":
        raise NACError(f"{arch} is a file: name what makes the network in it, as in {arch}:make.")
    forms = "; ".join(kind.form for kind in _KINDS)
    raise NACError(f"unknown architecture '{arch}'. Expected one of: {forms}.")


def build(arch: str, n_classes: int) -> nn.Module:
    """Make a network in evaluation mode; its weights are random unless it comes with some.

    Args:
        arch: as in `kind_of`.
        n_classes: number of classes.
    """
    return kind_of(arch).build(n_classes).eval()


def network_of(arch: str, n_classes: int, weights: Optional[str] = None) -> nn.Module:
    """Make a network with weights, in evaluation mode.

    Args:
        arch: as in `kind_of`.
        n_classes: number of classes. Networks that come with weights keep their own number.
        weights: a checkpoint file, or `torchvision:NAME` for published ones; None takes those that
            the network comes with.
    """
    if weights is not None and not weights.startswith(PUBLISHED):
        return load_checkpoint(build(arch, n_classes), weights)
    return kind_of(arch).pretrained(n_classes, weights).eval()


class NetworkKind:
    """Networks of one form.

    Attributes:
        form: how `arch` is spelled, for errors.
        prefix: what `arch` begins with, where it has a prefix.
        publisher: the library that publishes weights with transforms, if it is one.
        has_weights: whether `build` returns a network that already has its weights.
        by_name: whether `arch` alone defines the network, without code or files of the user.
        benchmarks: OpenOOD's benchmarks on which `transform` replaces the benchmark's own.
    """

    form = prefix = publisher = ""
    by_name = has_weights = False
    benchmarks: tuple[str, ...] = ()

    def __init__(self, arch: str) -> None:
        self.arch, self.name = arch, arch[len(self.prefix) :]

    @classmethod
    def matches(cls, arch: str) -> bool:
        """Whether `arch` has this form."""
        return arch.startswith(cls.prefix)

    def build(self, n_classes: int) -> nn.Module:
        """Make the network, for weights to be loaded into."""
        raise NotImplementedError

    def pretrained(self, n_classes: int, weights: Optional[str]) -> nn.Module:
        """Make the network with published weights; None takes its own, if it comes with any."""
        if weights is not None or not self.has_weights:
            raise NACError(f"there are no published weights of '{self.arch}'. {_PASS_FILE}")
        return self.build(n_classes)

    def transform(self, weights: Optional[str] = None) -> Optional[Transform]:
        """How the network's configuration turns an image into its input; None if unknown."""
        return None

    def transform_origin(self, weights: Optional[str] = None) -> str:
        """Where `transform` is from, in words."""
        if not self.publisher:
            return "the network's own"
        origin = f"{self.publisher}'s for the published weights of {self.name}"
        if weights is None or weights.startswith(PUBLISHED):
            return origin
        return f"{origin}; if {Path(weights).name} was trained with another, pass `transform`"

    def classes(self, weights: Optional[str] = None) -> tuple[str, ...]:
        """The names of the classes in the order of the logits; empty if unknown."""
        return ()


class _Package(NetworkKind):
    """The networks of this package."""

    form = "resnet18_32x32, resnet_embedded or vit_embedded"
    by_name = True

    @classmethod
    def matches(cls, arch: str) -> bool:
        return arch in _NETWORKS

    def build(self, n_classes: int) -> nn.Module:
        return _NETWORKS[self.arch](n_classes)

    def transform(self, weights: Optional[str] = None) -> Optional[Transform]:
        from nac_openood.sources.sets import BENCHMARKS

        return BENCHMARKS["embedded"].transform() if self.arch.endswith("_embedded") else None


class _Timm(NetworkKind):
    form, prefix, publisher = "timm:NAME", "timm:", "timm"
    by_name = True
    benchmarks = ("imagenet", "imagenet200")

    def __init__(self, arch: str) -> None:
        super().__init__(arch)
        self.timm = _library("timm", arch, "timm")
        if not self.timm.is_model(self.name):
            raise NACError(f"timm has no model '{self.name}'. See timm.list_models().")

    def build(self, n_classes: int) -> nn.Module:
        return self.timm.create_model(self.name, pretrained=False, num_classes=n_classes)

    def pretrained(self, n_classes: int, weights: Optional[str]) -> nn.Module:
        if weights is not None or not self.timm.is_model_pretrained(self.name):
            raise NACError(f"timm has no {weights or 'weights'} of '{self.name}'. {_PASS_FILE}")
        return _downloaded(self.arch, lambda: self.timm.create_model(self.name, pretrained=True))

    def transform(self, weights: Optional[str] = None) -> Optional[Transform]:
        data, config = self.timm.data, self.timm.get_pretrained_cfg(self.name)
        found = data.resolve_data_config({}, pretrained_cfg=config.to_dict() if config else {})
        return data.create_transform(**found, is_training=False)


class _Torchvision(NetworkKind):
    form = "a torchvision classifier (resnet50, vit_b_16, swin_t, ...)"
    publisher = "torchvision"
    by_name = True
    benchmarks = ("imagenet",)

    @classmethod
    def matches(cls, arch: str) -> bool:
        return arch in torchvision.models.list_models(module=torchvision.models)

    def build(self, n_classes: int) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of GoogLeNet and Inception, about random weights
            return torchvision.models.get_model(self.arch, weights=None, num_classes=n_classes)

    def pretrained(self, n_classes: int, weights: Optional[str]) -> nn.Module:
        published, get = self._published(), torchvision.models.get_model
        if weights not in published:
            raise NACError(f"{self.arch} needs a checkpoint file or one of {list(published)}.")
        if n_classes != 1000:
            raise NACError(f"{weights} has 1000 classes, not {n_classes}. {_PASS_FILE}")
        return _downloaded(self.arch, lambda: get(self.arch, weights=published[weights]))

    def transform(self, weights: Optional[str] = None) -> Optional[Transform]:
        """The transform of the published weights, of version 1 for a checkpoint file."""
        published = self._published()
        entry = published.get(weights, published.get(f"{PUBLISHED}IMAGENET1K_V1"))
        return None if entry is None else entry.transforms()

    def classes(self, weights: Optional[str] = None) -> tuple[str, ...]:
        entry = self._published().get(weights)
        return () if entry is None else tuple(entry.meta["categories"])

    def _published(self) -> dict[Optional[str], Any]:
        """The published weights by name, with the prefix."""
        members = torchvision.models.get_model_weights(self.arch).__members__
        return {f"{PUBLISHED}{name}": entry for name, entry in members.items()}


class _HuggingFace(NetworkKind):
    """Classifiers of images or texts in a folder or on the Hugging Face Hub."""

    form, prefix = "hf:NAME-OR-FOLDER of a Hugging Face classifier", "hf:"
    has_weights = True
    benchmarks = ("cifar10", "cifar100", "imagenet200", "imagenet", "embedded")

    def build(self, n_classes: int) -> nn.Module:
        task = "SequenceClassification" if self._takes_text() else "ImageClassification"
        return self._load(f"AutoModelFor{task}")

    def transform(self, weights: Optional[str] = None) -> Optional[Transform]:
        """The image processor or the tokenizer that was saved with the network."""
        if self._takes_text():
            return Tokenizer(self._load("AutoTokenizer"), self._load("AutoConfig"))
        return Processor(self._load("AutoImageProcessor"))

    def classes(self, weights: Optional[str] = None) -> tuple[str, ...]:
        names = self._load("AutoConfig").id2label
        found = tuple(str(names[number]) for number in sorted(names))
        return () if found == tuple(f"LABEL_{n}" for n in range(len(found))) else found

    def _takes_text(self) -> bool:
        names = self._load("AutoConfig").architectures or ()
        return any(name.endswith("ForSequenceClassification") for name in names)

    def _load(self, auto_class: str) -> Any:
        transformers = _library("transformers", self.arch, "hf")
        try:
            return getattr(transformers, auto_class).from_pretrained(self.name)
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            reason = textwrap.shorten(str(error), 400, placeholder=" ...")
            raise NACError(
                f"transformers.{auto_class} cannot load '{self.name}': {reason} Expected a folder "
                "written by save_pretrained, or a name on the Hugging Face Hub."
            ) from error


class Processor:
    """A Hugging Face image processor as a transform of one image."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def __call__(self, image: Image.Image) -> Tensor:
        """The `pixel_values` of an image, `[channels, height, width]`."""
        return self.processor(image, return_tensors="pt")["pixel_values"][0]

    def __repr__(self) -> str:
        settings = json.loads(self.processor.to_json_string())
        return f"{type(self.processor).__name__}({json.dumps(settings, sort_keys=True)})"


class Tokenizer:
    """A Hugging Face tokenizer as a transform of one text.

    Texts are padded and truncated to the longest input of the network, at most 512 tokens. Batches
    are then cut to the longest of their texts (`samples.without_padding`).
    """

    takes_text = True

    def __init__(self, tokenizer: Any, config: Any) -> None:
        longest = getattr(config, "max_position_embeddings", _MAX_TOKENS)
        self.tokenizer = tokenizer
        self.length = min(_MAX_TOKENS, tokenizer.model_max_length, longest)

    def __call__(self, text: Any) -> Any:
        """The network's inputs by name, `[length]` each."""
        made = self.tokenizer(text, padding="max_length", truncation=True, max_length=self.length)
        return {name: tensor(numbers) for name, numbers in made.items()}

    def __repr__(self) -> str:
        words = json.dumps(self.tokenizer.get_vocab(), sort_keys=True)
        digest = hashlib.sha256(words.encode()).hexdigest()[:16]
        return f"{type(self.tokenizer).__name__}(length={self.length}, vocabulary={digest})"


class _Program(NetworkKind):
    """Programs of torch.export, and TorchScript."""

    form = "a program FILE.pt2 of torch.export, or FILE.pt of TorchScript"

    @classmethod
    def matches(cls, arch: str) -> bool:
        suffix = Path(arch).suffix
        return suffix == ".pt2" or (suffix in _SCRIPTS and Path(arch).is_file())

    def build(self, n_classes: int) -> nn.Module:
        raise NACError(f"the program {self.arch} has its weights in it: leave out the checkpoint.")

    def pretrained(self, n_classes: int, weights: Optional[str]) -> nn.Module:
        return load_program(self.arch) if weights is None else self.build(n_classes)


class _UserCode(NetworkKind):
    form = "your own code, package.module:factory or path/to/file.py:factory"
    has_weights = True

    @classmethod
    def matches(cls, arch: str) -> bool:
        return is_code(arch)

    def build(self, n_classes: int) -> nn.Module:
        """Call the factory, with the number of classes if it takes it."""
        offered = {"n_classes": n_classes, "num_classes": n_classes}
        found = call_code(self.arch, "`arch`", offered, nn.Module)
        if not isinstance(found, nn.Module):
            got = type(found).__name__
            raise NACError(f"`arch`: {self.arch} makes a {got}, expected a torch.nn.Module.")
        return found


#: The first that matches is taken: `timm:resnet18` also has the form of code.
_KINDS = (_Package, _Timm, _HuggingFace, _Program, _UserCode, _Torchvision)


def _library(name: str, arch: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise NACError(f"'{arch}' needs {name}: pip install 'nac-openood[{extra}]'.") from None


def _downloaded(arch: str, download: Callable[[], nn.Module]) -> nn.Module:
    try:
        return download()
    except Exception as error:  # a download has many ways to fail
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise NACError(f"cannot download weights of {arch} ({reason}). {_PASS_FILE}") from error


# ---- small networks for 32x32 images


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; `stride` divides height and width."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class CifarResNet18(nn.Module):
    """ResNet-18 for 32x32 images, with the parameter names of OpenOOD's checkpoints."""

    channels, stride = 64, 1  # of the first convolution

    def __init__(self, n_classes: int = 10) -> None:
        super().__init__()
        channels = self.channels
        self.conv1 = nn.Conv2d(3, channels, 3, self.stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.layer1 = self.stage(channels, channels, 1)
        self.layer2 = self.stage(channels, 2 * channels, 2)
        self.layer3 = self.stage(2 * channels, 4 * channels, 2)
        self.layer4 = self.stage(4 * channels, 8 * channels, 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * channels, n_classes)

    @staticmethod
    def stage(in_channels: int, channels: int, stride: int) -> nn.Module:
        """Two blocks, of which the first may halve height and width."""
        return nn.Sequential(
            ResidualBlock(in_channels, channels, stride), ResidualBlock(channels, channels, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[batch, classes]` of images `[batch, 3, 32, 32]`."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


class SmallResNet(CifarResNet18):
    """A ResNet of 300,000 parameters, with one block per stage.

    The first convolution halves height and width: the embedded benchmark's digits have no finer
    detail, and training takes seconds.
    """

    channels, stride = 16, 2
    stage = ResidualBlock


def small_vit(n_classes: int = 8) -> nn.Module:
    """A small torchvision transformer: 16 patches, four blocks of width 64."""
    return torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=4, num_heads=4, hidden_dim=64, mlp_dim=128,
        num_classes=n_classes,
    )  # fmt: skip


_NETWORKS: Mapping[str, Callable[[int], nn.Module]] = {
    "resnet18_32x32": CifarResNet18,
    "resnet_embedded": SmallResNet,
    "vit_embedded": small_vit,
}
