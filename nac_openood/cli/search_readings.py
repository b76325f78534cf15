"""Where the readings of `nac-openood search` come from: a folder, or a network and images."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Callable

from nac_openood.cli import options
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from nac_openood.search.stored import ReadingSet

#: Options that say how to read a network, and so do not go with --readings.
NEEDS_A_NETWORK = (
    "checkpoint", "arch", "id_data", "data_root", "ood_val", "n_samples", "held_out",
    "batch_size", "workers", "device", "fast", "save_readings", "skip_bad",
)  # fmt: skip


def readings_for(args: argparse.Namespace, say: Callable[[str], None]) -> ReadingSet:
    """Map saved readings, or make them."""
    unset = (None, False)  # 0 is an answer: compare by identity
    given = [
        options.option(name)
        for name in NEEDS_A_NETWORK
        if not any(getattr(args, name) is value for value in unset)
    ]
    if args.readings is not None:
        if given:
            raise NACError(
                f"--readings needs no network: {', '.join(given)} cannot change readings that are "
                "already made. Leave them out, or leave out --readings."
            )
        from nac_openood.search.stored import ReadingSet

        return ReadingSet.load(args.readings)
    lacking = [options.option(n) for n in ("checkpoint", "arch", "id_data") if not getattr(args, n)]
    if lacking:
        raise NACError(
            f"{', '.join(lacking)} not given. Give --checkpoint, --arch and --id-data to read a "
            "network, or --readings to use readings made earlier."
        )
    return _collect(args, say)


def _collect(args: argparse.Namespace, say: Callable[[str], None]) -> ReadingSet:
    from torch.utils.data import DataLoader

    from nac_openood.detector.detector import NACDetector
    from nac_openood.search.choice import about_network, config_for
    from nac_openood.search.recipe import HELD_OUT, gather
    from nac_openood.sources.imglist import benchmark_named
    from nac_openood.sources.networks import network_of, transform_for
    from nac_openood.sources.sets import fitting_sets

    benchmark = benchmark_named(args.id_data)
    net = options.on_device(
        network_of(args.arch, benchmark.n_classes, args.checkpoint), args.device
    )
    config = config_for(net, benchmark.name, args.layers)
    batch_size, workers = (
        options.number(args, "batch_size", 100, 1),
        options.number(args, "workers", 0, 0),
    )
    transform = transform_for(args.arch, benchmark, args.checkpoint)
    sets = fitting_sets(benchmark, args.data_root or "data", transform, args.ood_val)
    if args.skip_bad:
        sets = {name: _readable(images, workers, name, say) for name, images in sets.items()}
    _, *named = sets
    loaders = [DataLoader(s, batch_size=batch_size, num_workers=workers) for s in sets.values()]
    about = {"arch": args.arch, "checkpoint": args.checkpoint, "id_data": benchmark.name}
    return gather(
        NACDetector(net, config.layers, fast=args.fast), *loaders,
        n_samples=options.number(args, "n_samples", config.n_samples or 1000, 1),
        held_out=options.number(args, "held_out", HELD_OUT, 0),
        folder=args.save_readings,
        names=dict(zip(("id_val", "ood_val"), named)),
        about={**about, **about_network(net)},
        seed=args.seed,
        say=say,
    )  # fmt: skip


def _readable(images: Any, workers: int, title: str, say: Callable[[str], None]) -> Any:
    """The images without those that cannot be read."""
    from nac_openood.sources.images import bad_images, told

    bad = bad_images(images, workers=workers, title=title)
    if bad:
        say(f"left out of {title}: {told(images, bad)}")
    return images.without(list(bad)) if bad else images
