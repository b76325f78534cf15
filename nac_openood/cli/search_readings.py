"""Where the readings of `nac-openood search` come from: a folder, or a network and images."""

from __future__ import annotations

import argparse
from typing import Callable

from nac_openood.cli.options import at_least, on_device, option
from nac_openood.errors import NACError
from nac_openood.search.stored import ReadingSet

#: Options that say how to read a network, and so do not go with --readings.
NEEDS_A_NETWORK = (
    "checkpoint", "arch", "id_data", "data_root", "ood_val", "n_samples", "held_out",
    "batch_size", "workers", "device", "fast", "save_readings",
)  # fmt: skip


def readings_for(args: argparse.Namespace, say: Callable[[str], None]) -> ReadingSet:
    """Map saved readings, or make them."""
    unset = (None, False)  # 0 is an answer: compare by identity
    given = [
        option(name)
        for name in NEEDS_A_NETWORK
        if not any(getattr(args, name) is value for value in unset)
    ]
    if args.readings is not None:
        if given:
            raise NACError(
                f"--readings needs no network: {', '.join(given)} cannot change readings that are "
                "already made. Leave them out, or leave out --readings."
            )
        return ReadingSet.load(args.readings)
    lacking = [option(n) for n in ("checkpoint", "arch", "id_data") if not getattr(args, n)]
    if lacking:
        raise NACError(
            f"{', '.join(lacking)} not given. Give --checkpoint, --arch and --id-data to read a "
            "network, or --readings to use readings made earlier."
        )
    return _collect(args, say)


def _collect(args: argparse.Namespace, say: Callable[[str], None]) -> ReadingSet:
    from nac_openood.bench.collect import Source, collect
    from nac_openood.bench.imglist import benchmark_named
    from nac_openood.bench.networks import build, load_checkpoint, transform_for
    from nac_openood.detector import NACDetector
    from nac_openood.search.choice import about_network, default_layers, default_samples

    benchmark = benchmark_named(args.id_data)
    net = load_checkpoint(build(args.arch, benchmark.n_classes), args.checkpoint)
    net = on_device(net, args.device)
    layers = default_layers(net, benchmark.name, args.layers)
    source = Source(
        benchmark,
        args.data_root or "data",
        transform_for(args.arch, benchmark),
        batch_size=at_least("batch_size", args.batch_size, 100, 1),
        workers=at_least("workers", args.workers, 0, 0),
    )
    return collect(
        NACDetector(net, layers, fast=args.fast),
        source,
        n_samples=at_least("n_samples", args.n_samples, default_samples(net, benchmark.name), 1),
        held_out=at_least("held_out", args.held_out, 1000, 0),
        ood_val=args.ood_val,
        folder=args.save_readings,
        seed=args.seed,
        about={"arch": args.arch, "checkpoint": args.checkpoint, **about_network(net)},
        say=say,
    )
