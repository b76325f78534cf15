"""The data that the options of a command name."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence

from nac_openood.cli import options
from nac_openood.cli.given import transform_of
from nac_openood.cli.output import say
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

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
