"""Options that several commands have: their names, help texts and checks."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import textwrap
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional

from nac_openood.benchmark.methods.table import AUTO_BACKEND, BACKENDS
from nac_openood.errors import NACError, first_line

if TYPE_CHECKING:
    from torch import nn

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

# The names that options accept, here because their homes import torch. tests/test_cli.py checks
# that they are the names of the tables at home.
STRATEGY_NAMES = ("grid", "layerwise", "random")
OBJECTIVE_NAMES = ("auroc", "fpr95", "mean")
#: Bytes in the name of a file on common file systems.
_LONGEST_NAME = 255
_MOST, _MOST_WORKERS = 2**31 - 1, 1024


def seed_number(text: str) -> int:
    """A random seed that all libraries take."""
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to {2**32 - 1}")
    return int(text)


def rule_name(text: str) -> str:
    """The name of a rule, also of one that another package offers."""
    from nac_openood.core.rules import RULES, rule_named

    if text not in RULES:
        try:
            rule_named(text)
        except NACError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
    return text


_SETS = "NAME=FOLDER of images; with --id-data also NAME of a list test_NAME"
_SHARED: Mapping[str, Mapping[str, Any]] = {
    "--arch": {
        "metavar": "NET",
        "help": "the network: resnet18_32x32, a torchvision model, timm:NAME, hf:NAME-OR-FOLDER, "
        "FILE.pt2, or your code path/to/file.py:factory (see below)",
    },
    "--checkpoint": {
        "metavar": "PATH",
        "help": "a file, a folder with best.ckpt, or torchvision:IMAGENET1K_V1 for published "
        "weights",
    },
    "--transform": {
        "metavar": "T",
        "help": "how images become the network's input: auto (the network's own configuration), a "
        "YAML file, or your code path/to/file.py:name (default: auto; see below)",
    },
    "--image-size": {
        "type": int,
        "metavar": "N",
        "help": "in place of --transform: resize images to N x N and normalize as for ImageNet",
    },
    "--train": {
        "metavar": "DATA",
        "help": "training images of your own: a folder with a subfolder per class, a CSV file with "
        "the columns path and label, or your code path/to/file.py:function (see below)",
    },
    "--val": {
        "metavar": "DATA",
        "help": "ID validation images, not those the network was trained on (default: 20 %% of "
        "--train is held out)",
    },
    "--test": {
        "metavar": "DATA",
        "help": "ID test images, not those the network was trained on (default: 20 %% of what is "
        "left of --train is held out)",
    },
    "--near": {"nargs": "*", "metavar": "SET", "help": f"near-OOD sets: {_SETS}"},
    "--far": {"nargs": "*", "metavar": "SET", "help": f"far-OOD sets: {_SETS}"},
    "--id-data": {
        "metavar": "NAME",
        "help": "data of OpenOOD instead of --train: cifar10, cifar100, imagenet200 or imagenet; "
        "or embedded, the demo's images as files",
    },
    "--data-root": {
        "metavar": "DIR",
        "help": "OpenOOD's data folder, with benchmark_imglist/ and images (default: ./data)",
    },
    "--ood-val": {
        "metavar": "SET",
        "help": "OOD validation set: NAME of a list val_NAME, NAME=FOLDER of images, or 'none' for "
        "surrogates made from ID validation images (default: tin for CIFAR, openimage_o for "
        "ImageNet, none for --train)",
    },
    "--nac-config": {
        "metavar": "YAML",
        "help": "NAC's settings and sweep (default: those shipped)",
    },
    "--against": {
        "choices": ["paper"],
        "help": "put the published numbers beside the measured ones",
    },
    "--skip-bad": {"action": "store_true", "help": "leave out images that cannot be read"},
    "--alpha": {
        "type": float,
        "default": 0.05,
        "metavar": "P",
        "help": "an image is out-of-distribution if its p-value is at most P, which is then about "
        "the share of false alarms (default: %(default)s)",
    },
    "--out": {"metavar": "DIR", "help": "folder of the results (default: ./%(default)s)"},
    "--open": {"action": "store_true", "help": "open the page in a browser"},
    "--backend": {
        "choices": BACKENDS,
        "default": AUTO_BACKEND,
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
        "type": seed_number,
        "default": 0,
        "metavar": "N",
        "help": "random seed (default: %(default)s)",
    },
}

#: What the help of every command with --arch and --transform says at its end.
NETWORK_FORMS = """\
networks (--arch):
  resnet50, vit_b_16, ...    torchvision; --checkpoint FILE or torchvision:IMAGENET1K_V1
  timm:NAME                  timm; without --checkpoint its published weights
  hf:NAME-OR-FOLDER          Hugging Face, with its weights, class names, and image processor or
                             tokenizer
  net.pt2, script.pt         a program of torch.export or TorchScript, with its weights in it
  file.py:factory, package.module:factory
                             your own code, which is run: the factory is called with the number
                             of classes if it takes it (n_classes), otherwise with nothing
transforms (--transform):
  auto                       what timm, torchvision or Hugging Face have for the network
  transform.yml              e.g. {resize: 256, crop: 224, mean: [0.5, 0.5, 0.5],
                             std: [0.2, 0.2, 0.2]}; also interpolation and gray
  file.py:name               your own code, which is run: a function of an image, or a function
                             or class without arguments that makes one
"""
#: The same for commands with --train.
FORMS = f"""\
{NETWORK_FORMS}\
data (--train, --val, --test, NAME=... of --near and --far):
  FOLDER                     a subfolder per class; subfolders of OOD sets do not matter
  list.csv                   columns path and label; paths are relative to the list. Columns text
                             and label for a network of texts
  file.py:function           your own code, which is run: returns a dataset of (x, y), or a dict
                             of datasets; is given the transform if it takes an argument
"""


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
        if chosen.type == "meta":
            raise RuntimeError("it computes nothing")
        if chosen.type == "cuda" and chosen.index is not None:
            torch.cuda.set_device(chosen)  # where OpenOOD's bare .cuda() goes as well
        return net.to(chosen)
    except (RuntimeError, AssertionError) as error:
        raise NACError(
            f"--device: cannot use '{device}' ({first_line(error)}). Try --device cpu."
        ) from error


def number(args: argparse.Namespace, name: str, default: int, least: int) -> int:
    """The value of an option, if it is within bounds; the default if it was not given."""
    from nac_openood.core.layer_config import whole_number

    given = getattr(args, name)
    most = _MOST_WORKERS if name == "workers" else _MOST
    return whole_number(f"`{name}`", default if given is None else given, least, most)


def loading(args: argparse.Namespace) -> dict[str, Any]:
    """How samples are loaded, by the names of Python arguments: `batch_size` and `workers`."""
    return {
        "batch_size": number(args, "batch_size", 100, 1),
        "workers": number(args, "workers", 0, 0),
    }


def refuse_impossible_names(given: Mapping[str, Any]) -> None:
    """Raise if an argument is too long for a file: the system would, wherever it is first used."""
    for value in given.values():
        for text in value if isinstance(value, (list, tuple)) else [value]:
            parts = text.split("/") if isinstance(text, str) else []
            if any(len(os.fsencode(part)) > _LONGEST_NAME for part in parts):
                raise NACError(f"no file has a name such as {text[:60]!r}...: it is too long.")


def typed_command() -> str:
    """The command that is running, as one types it."""
    return shlex.join(["nac-openood", *sys.argv[1:]])


def option(name: str) -> str:
    """`--batch-size` of `batch_size`."""
    return "--" + name.replace("_", "-")
