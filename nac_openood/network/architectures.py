"""Which modules to read, by architecture: rows of a table, recognized by the modules that exist.

A row matches when its layers and all `requires` paths exist in the network, so OpenOOD's,
torchvision's and timm's networks are recognized without importing any of them. To support another
architecture, add a row.
"""

from __future__ import annotations

import difflib
from itertools import count, takewhile
from typing import Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

from torch import nn

from nac_openood.errors import ProbeError


class Layer(NamedTuple):
    """One module to read.

    Args:
        alias: the name for users. `{k}` stands for the number of a repeated block.
        path: dotted path of the module whose output is read.
        layout: how its output is laid out, one of `LAYOUTS`; None chooses by its dimensions and,
            for tokens, by which of them the logits depend on (`token_layouts` in `probe.py`).
        also: other spellings of the alias.
    """

    alias: str
    path: str
    layout: Optional[str] = None
    also: tuple[str, ...] = ()


class Architecture(NamedTuple):
    """A row: a family, where its layers are, deepest first, and which other modules it has."""

    family: str
    layers: tuple[Layer, ...]
    requires: tuple[str, ...] = ()


def _stages(
    pool: str, pattern: str, numbers: Sequence[int] = (4, 3, 2, 1), layout: str = "maps"
) -> tuple[Layer, ...]:
    """The pooling before the head, and `layer4` to `layer1`, with their numbers in module paths."""
    pairs = zip((4, 3, 2, 1), numbers)
    stages = (Layer(f"layer{i}", pattern.format(n), layout) for i, n in pairs)
    return (Layer("avgpool", pool, "flat"), *stages)


def _vit(final: str, layout: str, block: str) -> tuple[Layer, ...]:
    """The norm before the head, and the norm after attention in every block."""
    return (
        Layer("ln", final, layout, also=("layer_norm",)),
        Layer("block{k}", block, "tokens", also=("layer_{k}",)),
    )


ARCHITECTURES: tuple[Architecture, ...] = (
    # torchvision and OpenOOD
    Architecture("resnet", _stages("avgpool", "layer{}")),
    # timm
    Architecture("resnet", _stages("global_pool", "layer{}")),
    # torchvision and OpenOOD
    Architecture(
        "vit",
        _vit("encoder.ln", "class_token", "encoder.layers.encoder_layer_{k}.ln_2"),
        ("conv_proj",),
    ),
    # timm's distilled DeiT
    Architecture(
        "vit", _vit("norm", "class_token", "blocks.{k}.norm2"), ("patch_embed", "head_dist")
    ),
    # timm's ViT and DeiT; `fc_norm` returns what the head receives, whether the network takes the
    # class token or averages
    Architecture("vit", _vit("fc_norm", "flat", "blocks.{k}.norm2"), ("patch_embed", "norm")),
    # torchvision and OpenOOD
    Architecture(
        "swin",
        _stages("avgpool", "features.{}", (7, 5, 3, 1), "maps_last"),
        ("norm", "permute", "head"),
    ),
    # timm
    Architecture(
        "swin",
        _stages("head.global_pool", "layers.{}", (3, 2, 1, 0), "maps_last"),
        ("patch_embed", "layers.3.blocks", "norm"),
    ),
    # torchvision and OpenOOD
    Architecture("regnet", _stages("avgpool", "trunk_output.block{}"), ("stem", "fc")),
    # torchvision; its VGG, AlexNet and MobileNetV3 have `features.7` as well
    Architecture(
        "convnext",
        _stages("avgpool", "features.{}", (7, 5, 3, 1)),
        ("features.7.0.block", "classifier.2"),
    ),
    # timm
    Architecture(
        "convnext",
        _stages("head.global_pool", "stages.{}", (3, 2, 1, 0)),
        ("stem", "stages.3.blocks", "norm_pre"),
    ),
    # torchvision and timm
    Architecture(
        "densenet",
        (Layer("norm5", "features.norm5", "maps"), *_stages("", "features.denseblock{}")[1:]),
        ("classifier",),
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
            paths = [layer.path.format(k=0) for layer in architecture.layers]
            if all(prefix + path in modules for path in [*paths, *architecture.requires]):
                return architecture, prefix
    return None


def table_layers(net: nn.Module) -> list[Layer]:
    """The layers that the table has for `net`, deepest first, with full paths; [] if none."""
    found = recognize(net)
    if found is None:
        return []
    architecture, prefix = found
    modules, layers = dict(net.named_modules()), []
    for row in architecture.layers:
        numbers: Iterable[int] = count() if "{k}" in row.path else [0]
        paths = ((prefix + row.path).format(k=k) for k in numbers)
        blocks = [
            Layer(row.alias.format(k=k), path, row.layout, tuple(n.format(k=k) for n in row.also))
            for k, path in enumerate(takewhile(modules.__contains__, paths))
        ]
        layers += blocks[::-1]
    return layers


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
    raise ProbeError(describe(net, f"has no layer '{name}'. {hint}{known}"))


def describe(net: nn.Module, problem: str = "is not in the architecture table. ") -> str:
    """The problem with a network or a name, and how to name layers by module path."""
    paths = [path for path, _ in net.named_modules() if path and path.count(".") <= 1]
    example = [*paths[-2:], "layer4"][0]
    shown = ", ".join(paths[:24]) + (", ..." if len(paths) > 24 else "")
    return (
        f"{type(net).__name__} {problem}Name layers by module path, e.g. "
        f"layers={{'{example}': LayerConfig(...)}}. Its modules: {shown}."
    )
