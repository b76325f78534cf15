"""The network and the transform that the options of a command name."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence

from nac_openood.cli import options
from nac_openood.cli.output import say
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from torch import nn

    from nac_openood.sources.fitted import Deployed
    from nac_openood.sources.transforms import Preprocessing


def add_detector(group: argparse._ActionsContainer) -> None:
    """Add the options that name a detector's file and the network it belongs to."""
    group.add_argument(
        "--detector", required=True, metavar="FILE", help="what nac-openood fit wrote"
    )
    options.add(
        group, "--arch",
        help="the network that the detector was fitted on, written as for nac-openood fit (see "
        "below); the detector's file is enough for timm:NAME and torchvision models",
    )  # fmt: skip
    options.add(group, "--checkpoint")
    options.add(
        group, "--transform",
        help="needed only if it is your code, path/to/file.py:name (default: the transform in the "
        "detector's file)",
    )  # fmt: skip


def deployed(args: argparse.Namespace, *, images_to: str = "") -> Deployed:
    """The detector of --detector with its network, on its device, and its transform.

    Args:
        args: the options.
        images_to: what is done that can be done with a detector of images only.
    """
    from nac_openood.sources.fitted import load_fitted
    from nac_openood.sources.texts import takes_text

    found = load_fitted(
        args.detector, arch=args.arch, weights=_one_file(args.checkpoint), transform=args.transform,
        prepare=lambda net: options.on_device(net, args.device),
    )  # fmt: skip
    if images_to and takes_text(found.transform):
        raise NACError(
            f"expected a detector of images to {images_to}, and this one is of texts. "
            "nac-openood score judges texts."
        )
    return found


def checkpoints_of(args: argparse.Namespace) -> dict[str, Optional[str]]:
    """The paths of --checkpoint by name; None for a network that comes with its weights."""
    from nac_openood.sources.checkpoints import find_checkpoints

    _check_arch(args)
    if args.checkpoint is None:
        return {"network": None}
    return {each.name: each.path for each in find_checkpoints(args.checkpoint)}


def one_checkpoint(args: argparse.Namespace) -> Optional[str]:
    """The path of the one checkpoint, or None for a network that comes with its weights."""
    _check_arch(args)
    return _one_file(args.checkpoint)


def _check_arch(args: argparse.Namespace) -> None:
    if args.arch is None:
        raise NACError("expected --arch: which network?")


def _one_file(given: Optional[str]) -> Optional[str]:
    from nac_openood.sources.checkpoints import find_checkpoints

    if given is None:
        return None
    found = find_checkpoints([given])
    if len(found) > 1:
        raise NACError(
            f"{given} holds {len(found)} checkpoints, expected one: pass e.g. {found[0].path}."
        )
    return found[0].path


def loader_of(args: argparse.Namespace, n_classes: int) -> Callable[[Optional[str]], nn.Module]:
    """A function that makes the network of a checkpoint, on its device."""
    from nac_openood.sources.networks import network_of

    return lambda path: options.on_device(network_of(args.arch, n_classes, path), args.device)


def transform_of(
    args: argparse.Namespace, checkpoints: Sequence[Optional[str]], benchmark: Any = None
) -> Preprocessing:
    """The transform of the images, which all checkpoints must share."""
    from nac_openood.sources.transforms import chosen_transform, square_transform

    if getattr(args, "image_size", None) is not None:
        if args.transform is not None:
            raise NACError("--image-size and --transform exclude each other: give one of them.")
        return square_transform(options.number(args, "image_size", 224, 1))
    made = [
        chosen_transform(args.transform, args.arch, path, benchmark=benchmark)
        for path in checkpoints
    ]
    if len({one.identity for one in made}) > 1:
        raise NACError(
            f"these checkpoints need different transforms of the images: "
            f"{'; '.join(map(str, made))}. Compare them one by one."
        )
    say(f"transform: {made[0]}")
    return made[0]
