"""Where the readings of `nac-openood search` come from: a folder, or a network and images."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from nac_openood.cli import given, given_data, options
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from nac_openood.detector.config import NACConfig
    from nac_openood.progress import Say
    from nac_openood.search.stored import ReadingSet

#: Options that say how to read a network, and so do not go with --readings.
NEEDS_A_NETWORK = (
    "checkpoint", "arch", "transform", "image_size", "train", "val", "id_data", "data_root",
    "ood_val", "n_samples", "held_out", "batch_size", "workers", "device", "fast",
    "save_readings", "skip_bad",
)  # fmt: skip


def readings_for(args: argparse.Namespace, say: Say) -> ReadingSet:
    """Map saved readings, or make them."""
    unset = (None, False)  # 0 is an answer: compare by identity
    asked = [
        options.option(name)
        for name in NEEDS_A_NETWORK
        if not any(getattr(args, name) is value for value in unset)
    ]
    if args.readings is not None:
        if asked:
            raise NACError(
                f"--readings needs no network: {', '.join(asked)} cannot change readings that are "
                "already made. Leave them out, or leave out --readings."
            )
        from nac_openood.search.stored import ReadingSet

        return ReadingSet.load(args.readings)
    if args.arch is None:
        raise NACError(
            "--arch not given. Give --arch, --checkpoint and --id-data or --train to read a "
            "network, or --readings to use readings made earlier."
        )
    return _collect(args, say)


def _collect(args: argparse.Namespace, say: Say) -> ReadingSet:
    from nac_openood.detector.detector import NACDetector
    from nac_openood.search.choice import about_network
    from nac_openood.search.recipe import HELD_OUT, gather

    path = given.one_checkpoint(args)
    data = given_data.data_of(args, [path], needs_test=False)
    net = given.loader_of(args, data.sets.n_classes)(path)
    config = _config(args, net, data)
    names = {"id_val": f"val_{data.sets.id_name}", "ood_val": data.ood_val}
    roles = {"train": data.sets.train, names["id_val"]: data.sets.id_val}
    sets = {**roles, **({data.ood_val: data.sets.ood_val} if data.sets.ood_val is not None else {})}
    loaders = [given_data.loader(args, name, found) for name, found in sets.items()]
    about = {"arch": args.arch, "checkpoint": args.checkpoint, "id_data": data.sets.id_name}
    return gather(
        NACDetector(net, config.layer_choice, fast=args.fast), *loaders,
        n_samples=options.number(args, "n_samples", config.n_samples or 1000, 1),
        n_held_out=options.number(args, "held_out", HELD_OUT, 0),
        folder=args.save_readings,
        names=names,
        about={**about, **about_network(net)},
        seed=args.seed,
        say=say,
    )  # fmt: skip


def _config(args: argparse.Namespace, net: Any, data: given_data.Data) -> NACConfig:
    """The layers to read: those asked for, else the shipped ones, for own data automatic ones."""
    from nac_openood.detector.config import NACConfig
    from nac_openood.search.choice import config_for

    if data.own and not args.layers:
        return NACConfig({})
    return config_for(net, data.sets.id_name, args.layers)
