"""Which modules to read, by architecture: rows of a table, recognized by the modules that exist.

A row matches when all its `requires` paths exist in the network, so OpenOOD's, torchvision's and
timm's networks are recognized without importing any of them. To support another architecture,
add a row.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import Iterator, Mapping, Optional, Sequence

from torch import nn

from nac_openood.errors import ProbeError


@dataclass(frozen=True)
class Layer:
    """One module to read.

    Args:
        alias: the name for users. `{k}` stands for the number of a repeated block.
        path: dotted path of the module whose output is read.
        layout: how its output is laid out, one of `LAYOUTS`; None chooses by its dimensions and,
            for tokens, by which of them the logits depend on (`token_layouts` of `auto.py`).
        also: other spellings of the alias.
    """

    alias: str
    path: str
    layout: Optional[str] = None
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Architecture:
    """A row: how to recognize a network and where its layers are, deepest first."""

    name: str
    family: str
    requires: tuple[str, ...]
    layers: tuple[Layer, ...]


def _stages(
    pool: str, pattern: str, numbers: Sequence[int] = (4, 3, 2, 1), layout: str = "maps"
) -> tuple[Layer, ...]:
    """Pooling before the head, and `layer4` to `layer1` by the number of each stage in a path."""
    pairs = zip((4, 3, 2, 1), numbers)
    stages = (Layer(f"layer{i}", pattern.format(n), layout) for i, n in pairs)
    return (Layer("avgpool", pool, "flat"), *stages)


def _vit(final: str, layout: str, block: str) -> tuple[Layer, ...]:
    """The norm before the head, and the norm after attention in every block."""
    return (
        Layer("ln", final, layout, also=("layer_norm",)),
        Layer("block{k}", block, "tokens", also=("layer_{k}",)),
    )


_RESNET = ("layer1", "layer2", "layer3", "layer4")

ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(
        "ResNet (torchvision, OpenOOD)",
        "resnet",
        (*_RESNET, "avgpool"),
        _stages("avgpool", "layer{}"),
    ),
    Architecture(
        "ResNet (timm)", "resnet", (*_RESNET, "global_pool"), _stages("global_pool", "layer{}")
    ),
    Architecture(
        "ViT (torchvision, OpenOOD)",
        "vit",
        ("conv_proj", "encoder.ln", "encoder.layers.encoder_layer_0.ln_2"),
        _vit("encoder.ln", "class_token", "encoder.layers.encoder_layer_{k}.ln_2"),
    ),
    Architecture(
        "DeiT, distilled (timm)",
        "vit",
        ("patch_embed", "blocks.0.norm2", "norm", "head_dist"),
        _vit("norm", "class_token", "blocks.{k}.norm2"),
    ),
    Architecture(
        "ViT, DeiT (timm)",
        "vit",
        ("patch_embed", "blocks.0.norm2", "norm", "fc_norm"),
        # what the head receives, whether the network takes the class token or averages
        _vit("fc_norm", "flat", "blocks.{k}.norm2"),
    ),
    Architecture(
        "Swin (torchvision, OpenOOD)",
        "swin",
        ("features.7", "norm", "permute", "avgpool", "head"),
        _stages("avgpool", "features.{}", (7, 5, 3, 1), "maps_last"),
    ),
    Architecture(
        "Swin (timm)",
        "swin",
        ("patch_embed", "layers.3.blocks", "norm", "head.global_pool"),
        _stages("head.global_pool", "layers.{}", (3, 2, 1, 0), "maps_last"),
    ),
    Architecture(
        "RegNet (torchvision, OpenOOD)",
        "regnet",
        ("stem", "trunk_output.block4", "avgpool", "fc"),
        _stages("avgpool", "trunk_output.block{}"),
    ),
    Architecture(
        "ConvNeXt (torchvision)",
        "convnext",
        # not `features.7`, which VGG, AlexNet and MobileNetV3 have as well
        ("features.7.0.block", "avgpool", "classifier.2"),
        _stages("avgpool", "features.{}", (7, 5, 3, 1)),
    ),
    Architecture(
        "ConvNeXt (timm)",
        "convnext",
        ("stem", "stages.3.blocks", "norm_pre", "head.global_pool"),
        _stages("head.global_pool", "stages.{}", (3, 2, 1, 0)),
    ),
    Architecture(
        "DenseNet (torchvision, timm)",
        "densenet",
        ("features.denseblock4", "features.norm5", "classifier"),
        (
            Layer("norm5", "features.norm5", "maps"),
            *_stages("", "features.denseblock{}")[1:],
        ),
    ),
)

#: Names under which a wrapper keeps the network it wraps.
_WRAPPERS = ("module", "_orig_mod", "backbone", "model", "net")


def _prefixes(modules: Mapping[str, nn.Module]) -> Iterator[str]:
    """The empty prefix and those of wrapped networks, outermost first."""
    queue = [""]
    for prefix in queue:
        yield prefix
        queue.extend(f"{prefix}{w}." for w in _WRAPPERS if f"{prefix}{w}" in modules)


def recognize(net: nn.Module) -> Optional[tuple[Architecture, str]]:
    """The row of the table for `net`, and the prefix of its paths in `net`; or None."""
    modules = dict(net.named_modules())
    for prefix in _prefixes(modules):
        for architecture in ARCHITECTURES:
            if all(prefix + path in modules for path in architecture.requires):
                return architecture, prefix
    return None


def table_layers(net: nn.Module) -> list[Layer]:
    """The layers that the table has for `net`, deepest first, with full paths; [] if none."""
    found = recognize(net)
    if found is None:
        return []
    architecture, prefix = found
    modules = dict(net.named_modules())
    rows = [replace(row, path=prefix + row.path) for row in architecture.layers]
    return [layer for row in rows for layer in _numbered(row, modules)]


def _numbered(row: Layer, modules: Mapping[str, nn.Module]) -> list[Layer]:
    """One layer for each block `{k}` that exists, deepest first; or the row itself."""
    if "{k}" not in row.path:
        return [row] if row.path in modules else []
    paths = takewhile(modules.__contains__, (row.path.format(k=k) for k in count()))
    found = [
        Layer(row.alias.format(k=k), path, row.layout, tuple(n.format(k=k) for n in row.also))
        for k, path in enumerate(paths)
    ]
    return found[::-1]


def find_layer(net: nn.Module, name: str) -> Layer:
    """Find the layer `name` of `net`: an alias of the table, or any dotted module path.

    Raises:
        ProbeError: there is no such layer; the message lists similar names.
    """
    rows = table_layers(net)
    for layer in rows:
        if name == layer.alias or name in layer.also:
            return layer
    layouts = {layer.path: layer.layout for layer in rows}
    modules = dict(net.named_modules())
    for prefix in _prefixes(modules):
        if name and prefix + name in modules:
            return Layer(name, prefix + name, layouts.get(prefix + name))
    aliases = [layer.alias for layer in rows]
    close = difflib.get_close_matches(name, [*aliases, *modules], n=3)
    hint = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
    known = f"Its known layers are {aliases}. " if aliases else ""
    raise ProbeError(
        f"{type(net).__name__} has no layer '{name}'. {hint}{known}{_by_path(net, close)}"
    )


def describe(net: nn.Module) -> str:
    """The error for a network that is not in the table, with how to name its layers."""
    known = ", ".join(architecture.name for architecture in ARCHITECTURES)
    return (
        f"{type(net).__name__} is not in the architecture table (known: {known}). {_by_path(net)}"
    )


def _by_path(net: nn.Module, close: Sequence[str] = ()) -> str:
    """How to name layers by module path; the example is the first of `close`, if any."""
    paths = [path for path, _ in net.named_modules() if path and path.count(".") <= 1]
    example = [*close, *paths[-2:], "layer4"][0]
    shown = ", ".join(paths[:24]) + (", ..." if len(paths) > 24 else "")
    return (
        f"Name layers by module path, e.g. layers={{'{example}': LayerConfig(...)}}. "
        f"Its modules: {shown}."
    )
