"""Options that several commands have: their names, help texts and checks."""

from __future__ import annotations

import argparse
import textwrap
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional

from nac_openood.benchmark.methods.table import AUTO, BACKENDS
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from torch import nn

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

# The names that options accept, here because their homes import torch. tests/test_cli.py checks
# that they are the names of the tables at home.
STRATEGIES = ("grid", "layerwise", "random")
OBJECTIVES = ("auroc", "fpr95", "mean")

_SHARED: Mapping[str, Mapping[str, Any]] = {
    "--arch": {"metavar": "NAME", "help": "resnet18_32x32, a torchvision model, or timm:NAME"},
    "--id-data": {
        "metavar": "NAME",
        "help": "in-distribution data: cifar10, cifar100, imagenet200 or imagenet",
    },
    "--data-root": {
        "metavar": "DIR",
        "help": "OpenOOD's data folder, with benchmark_imglist/ and images (default: ./data)",
    },
    "--ood-val": {
        "metavar": "SET",
        "help": "OOD validation set: NAME of a list val_NAME, NAME=FOLDER of images, or 'none' for "
        "surrogates made from ID validation images (default: tin for CIFAR, openimage_o for "
        "ImageNet)",
    },
    "--skip-bad": {"action": "store_true", "help": "leave out images that cannot be read"},
    "--out": {"metavar": "DIR", "help": "folder of the results (default: ./%(default)s)"},
    "--open": {"action": "store_true", "help": "open the page in a browser"},
    "--backend": {
        "choices": BACKENDS,
        "default": AUTO,
        "help": "library that provides the baselines (default: openood if installed, else "
        "pytorch-ood)",
    },
    "--batch-size": {"type": int, "metavar": "N", "help": "images per batch (default: 100)"},
    "--workers": {
        "type": int,
        "metavar": "N",
        "help": "processes that load images (default: 0, load them in the main process)",
    },
    "--device": {"metavar": "NAME", "help": "cpu, cuda, cuda:1, ... (default: cuda if available)"},
    "--seed": {
        "type": int,
        "default": 0,
        "metavar": "N",
        "help": "random seed (default: %(default)s)",
    },
}


def add_command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int], **texts: Any
) -> argparse.ArgumentParser:
    """Add a command to the parser, and return the parser of its options."""
    raw = argparse.RawDescriptionHelpFormatter  # for the examples
    texts["description"] = textwrap.fill(texts["description"], 79)
    parser = commands.add_parser(name, formatter_class=raw, **texts)
    parser.set_defaults(run=run)
    return parser


def add(group: argparse._ActionsContainer, *names: str, **more: Any) -> None:
    """Add options that several commands have, all of them with `more` settings."""
    for name in names:
        group.add_argument(name, **{**_SHARED[name], **more})


def on_device(net: nn.Module, name: Optional[str]) -> nn.Module:
    """Move a network to the device of that name, by default to a GPU if there is one."""
    import torch

    device = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        if chosen.type == "cuda" and chosen.index is not None:
            torch.cuda.set_device(chosen)  # where OpenOOD's bare .cuda() goes as well
        return net.to(chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise NACError(f"--device: cannot use '{device}' ({reason}). Try --device cpu.") from error


def number(args: argparse.Namespace, name: str, default: int, least: int) -> int:
    """The value of an option, if it is large enough; the default if it was not given."""
    from nac_openood.core.layer_config import whole_number

    given = getattr(args, name)
    return whole_number(f"`{name}`", default if given is None else given, least)


def option(name: str) -> str:
    """`--batch-size` of `batch_size`."""
    return "--" + name.replace("_", "-")
