"""The network, the transform and the data that the options of a command name."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Sequence

from nac_openood.cli import options
from nac_openood.cli.output import say
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.data import DataLoader

    from nac_openood.sources.fitted import Deployed
    from nac_openood.sources.sets import Datasets
    from nac_openood.sources.transforms import Preprocessing

SOURCES = ("id_data", "train")


class Data(NamedTuple):
    """Datasets and the transform that makes their samples.

    Args:
        sets: the datasets.
        transform: None if they come from code that needs no transform.
        own: whether the user brought them, and no settings are shipped for them.
        ood_val: name of the OOD validation set, if there is one.
    """

    sets: Datasets
    transform: Optional[Preprocessing]
    own: bool
    ood_val: str = ""


def add_network(group: argparse._ActionsContainer, *, several: bool = False) -> None:
    """Add the options that describe a network."""
    options.add(group, "--arch")
    _add_checkpoint(group, several=several)
    options.add(group, "--transform")


def _add_checkpoint(group: argparse._ActionsContainer, *, several: bool = False) -> None:
    kind = "a file, a folder with best.ckpt, or torchvision:IMAGENET1K_V1 for published weights"
    if several:
        kind = (
            "files, folders with best.ckpt, or an OpenOOD folder with s0, s1, ...; or "
            "torchvision:IMAGENET1K_V1 for published weights"
        )
    group.add_argument("--checkpoint", nargs="+" if several else None, metavar="PATH", help=kind)


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
    _add_checkpoint(group)
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


def data_of(
    args: argparse.Namespace, checkpoints: Sequence[Optional[str]], *, needs_test: bool = True
) -> Data:
    """The data of --id-data or --train, under the transform of the network.

    Args:
        args: the options.
        checkpoints: of the network; all must agree on the transform.
        needs_test: whether there must be ID test data.
    """
    read = _listed if one_source(args, SOURCES) == "id_data" else _own
    return read(args, checkpoints, needs_test)


def one_source(args: argparse.Namespace, names: Sequence[str]) -> str:
    """Which one of these options says where the images are from."""
    given = [name for name in names if getattr(args, name) not in (None, False)]
    if len(given) != 1:
        *most, last = map(options.option, names)
        raise NACError(
            f"expected one of {', '.join(most)} and {last} to say which images to use, got "
            f"{' and '.join(map(options.option, given)) or 'none'}."
        )
    return given[0]


def _listed(
    args: argparse.Namespace, checkpoints: Sequence[Optional[str]], needs_test: bool
) -> Data:
    from nac_openood.sources.imglist import benchmark_named
    from nac_openood.sources.sets import listed_sets

    refused = [name for name in ("val", "test") if getattr(args, name, None) is not None]
    if refused:
        raise NACError(f"{' and '.join(map(options.option, refused))} goes with --train only.")
    benchmark = benchmark_named(args.id_data)
    transform = transform_of(args, checkpoints, benchmark)
    sets = listed_sets(
        benchmark, args.data_root or "data", transform.transform, near=getattr(args, "near", None),
        far=getattr(args, "far", None), ood_val=args.ood_val,
        full_spectrum=getattr(args, "fsood", False), needs_test=needs_test,
    )  # fmt: skip
    name, is_folder, _ = (args.ood_val or benchmark.ood_val).partition("=")
    title = name if is_folder else f"val_{name}"
    return Data(sets, transform, own=False, ood_val="" if sets.ood_val is None else title)


def _own(args: argparse.Namespace, checkpoints: Sequence[Optional[str]], needs_test: bool) -> Data:
    from nac_openood.sources.networks import kind_of
    from nac_openood.sources.own_sets import needs_transform, own_sets

    if getattr(args, "fsood", False):
        raise NACError("--fsood goes with --id-data only.")
    roles: dict[str, Any] = {name: getattr(args, name, None) for name in ("val", "test", "ood_val")}
    sets_of: dict[str, Any] = {name: getattr(args, name, None) or () for name in ("near", "far")}
    transform = None
    try:
        transform = transform_of(args, checkpoints)
    except NACError:  # code may need none
        asked = args.transform is not None or args.image_size is not None
        if asked or needs_transform(args.train, **roles, **sets_of):
            raise
    sets = own_sets(
        args.train, **roles, **sets_of,
        transform=None if transform is None else transform.transform,
        classes=kind_of(args.arch).classes(args.arch, checkpoints[0]),
        seed=args.seed, needs_test=needs_test,
    )  # fmt: skip
    return Data(sets, transform, own=True, ood_val=(roles["ood_val"] or "").partition("=")[0])


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


def loader(args: argparse.Namespace, role: str, data: Any) -> DataLoader[Any]:
    """Batches of a set, in order, without images that cannot be read if the user wants that."""
    from torch.utils.data import DataLoader

    from nac_openood.sources.samples import Samples

    loading = options.loading(args)
    samples = Samples(role, _readable(data, loading["workers"], role) if args.skip_bad else data)
    return DataLoader(
        samples.dataset, loading["batch_size"], num_workers=loading["workers"],
        collate_fn=samples.collate,
    )  # fmt: skip


def _readable(images: Any, workers: int, title: str) -> Any:
    """The images without those that cannot be read, which are named; other data as it is."""
    from nac_openood.sources.images import FileImages, bad_images, told

    if not isinstance(images, FileImages):
        return images
    bad = bad_images(images, workers=workers, title=title)
    if bad:
        say(f"left out of {title}: {told(images, bad)}")
    return images.without(list(bad)) if bad else images
