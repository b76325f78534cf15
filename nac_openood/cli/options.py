"""Options of the commands, described in tables that look like the help text.

A row of a table has an option, two spaces and its help, which continues in lines that are indented
further. Lines without indentation are headings:

    how to judge:
      --format {csv,jsonl} = csv   output (default: %(default)s)
      --layers LAYER...            layers to read
      --n-samples N: int           training images to fit on
      --batch-size --workers       options of `_SHARED`, which several commands have

`N: int` names a kind of `_KINDS`, `= csv` a default, `LAYER...` takes one or more values and
`[SET...]` any number of them. An option without a metavar is a switch.
"""

from __future__ import annotations

import argparse
import math
import re
from contextlib import suppress
from typing import Any, Callable, Mapping, Union

from nac_openood.benchmark.methods import BACKENDS

_Run = Callable[[argparse.Namespace], int]

# Values of options, repeated here because the modules that define them import torch.
# tests/test_cli.py checks that they are the same.
STRATEGY_NAMES = "{grid,layerwise,random}"
OBJECTIVE_NAMES = "{auroc,fpr95,mean}"

_SETS = "NAME=FOLDER of images; with --id-data also NAME of a list test_NAME"
_SHARED = f"""
  --arch NET            the network, e.g. resnet50, timm:NAME or net.py:factory (see below)
  --checkpoint PATH     a file, a folder with best.ckpt, or torchvision:IMAGENET1K_V1
  --transform T         how images become the network's input: auto, a YAML file or code (see below)
  --image-size N: count   in place of --transform: resize to N x N and normalize as for ImageNet
  --train DATA          your training images: a folder, a CSV file or code (see below)
  --val DATA            ID validation images, not used in training (default: 20 %% of --train)
  --test DATA           ID test images, not used in training (default: 20 %% of the rest of --train)
  --near [SET...]       near-OOD sets: {_SETS}
  --far [SET...]        far-OOD sets: {_SETS}
  --id-data NAME        data of OpenOOD instead of --train: cifar10, cifar100, imagenet200 or
      imagenet; or embedded, the demo's images as files
  --data-root DIR       OpenOOD's data folder, with benchmark_imglist/ and images (default: ./data)
  --ood-val SET         OOD validation set: NAME of a list val_NAME, NAME=FOLDER of images, or
      'none' for surrogates made from ID validation images (default: tin for CIFAR, openimage_o for
      ImageNet, none for --train)
  --nac-config YAML     NAC's settings and sweep (default: those shipped)
  --against {{paper}}     put the published numbers beside the measured ones
  --skip-bad            leave out images that cannot be read
  --alpha P: float = 0.05   an image is out-of-distribution if its p-value is at most P, which is
      then about the share of false alarms (default: %(default)s)
  --out DIR             folder of the results (default: ./%(default)s)
  --open                open the page in a browser
  --backend {{{",".join(BACKENDS)}}} = auto   library that provides the baselines (default: openood
      if installed, else pytorch-ood)
  --batch-size N: count   images per batch (default: 100)
  --workers N: int      processes that load images (default: 0, load them in the main process)
  --device NAME         cpu, cuda, cuda:1, ... (default: cuda if available)
  --seed N: seed = 0    random seed (default: %(default)s)
  --shard I/N: shard    do only shard I of N, e.g. in one of N jobs; nac-openood merge joins them
"""

#: The options of commands that use a detector's file.
DETECTOR = """
detector and network:
  --detector FILE: required   the detector, a file that nac-openood fit wrote
  --arch NET            the network that the detector was fitted on, written as for nac-openood fit
      (see below); the detector's file is enough for timm:NAME and torchvision models
  --checkpoint
  --transform T         needed only if it is your code, path/to/file.py:name (default: as fitted)
"""


def _whole(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    """The type of an option that takes a whole number."""

    def convert(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}")
        return int(text)

    return convert


def _shard(text: str) -> tuple[int, int]:
    """The number of a shard, from 1 on, and the number of shards."""
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"expected I/N with I from 1 to N, got '{text}'")
    return int(match[1]), int(match[2])


def _positive(text: str) -> float:
    """The type of an option that takes a number above 0."""
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected a number above 0, got '{text}'")


def _guard(text: str) -> Union[float, str, None]:
    if text in ("auto", "none"):
        return text if text == "auto" else None
    with suppress(ValueError):
        return float(text)
    raise argparse.ArgumentTypeError(f"expected a number, 'auto' or 'none', got '{text}'")


_KINDS: Mapping[str, Mapping[str, Any]] = {
    "int": {"type": _whole(0)},
    "count": {"type": _whole(1)},
    "float": {"type": float},
    "port": {"type": _whole(0, 2**16 - 1)},
    "positive": {"type": _positive},
    "seed": {"type": _whole(0, 2**32 - 1)},
    "shard": {"type": _shard},
    "guard": {"type": _guard},
    "required": {"required": True},
    "append": {"action": "append", "default": []},
    "rest": {"nargs": argparse.REMAINDER},
}
_ROW = re.compile(r"(\S+)(?: (\{.*\}|[^\s:=]+))?(?:: (\w+))?(?: = (\S+))?")
_tables: dict[str, tuple[str, str]] = {}


def command(table: str, more: str = "") -> Callable[[_Run], _Run]:
    """Make a function a command with the options of a table.

    Args:
        table: the options.
        more: the end of the help.
    """

    def describe(run: _Run) -> _Run:
        _tables[run.__name__] = table, more
        return run

    return describe


def add_options(parser: argparse.ArgumentParser, run: _Run) -> None:
    """Give the parser of a command its options."""
    table, more = _tables[run.__name__]
    parser.epilog = f"{parser.epilog}{more}"
    parser.set_defaults(run=run)
    shared = {row.split()[0]: row for row in _rows(_SHARED)}
    group: argparse._ActionsContainer = parser
    for row in _rows(table):
        if row.endswith(":"):
            group = parser.add_argument_group(row[:-1])
        elif all(name in shared for name in row.split()):
            for name in row.split():
                _add(group, shared[name])
        else:  # perhaps a shared option with another default
            known = shared.get(row.split()[0], "").partition("  ")[2]
            _add(group, row if "  " in row else f"{row}  {known}")


def _rows(table: str) -> list[str]:
    """The rows of a table, each on one line."""
    return [re.sub(r"\n\s+", " ", row.strip()) for row in re.split(r"\n(?! {3})", table.strip())]


def _add(group: argparse._ActionsContainer, row: str) -> None:
    head, _, text = row.partition("  ")
    match = _ROW.fullmatch(head)
    assert match is not None, row
    name, metavar, kind, default = match.groups()
    about: dict[str, Any] = {"help": text.strip(), **(_KINDS[kind] if kind else {})}
    if metavar is None and name.startswith("--no-"):
        about.update(action="store_false", dest=name[5:].replace("-", "_"))
    elif metavar is None:
        about["action"] = "store_true"
    elif metavar.startswith("{"):
        about["choices"] = metavar[1:-1].split(",")
    else:
        about["metavar"] = metavar.strip("[.]")
        if "..." in metavar:
            about["nargs"] = "*" if metavar.startswith("[") else "+"
    if default is not None:
        about["default"] = about.get("type", str)(default)
    group.add_argument(name, **about)
