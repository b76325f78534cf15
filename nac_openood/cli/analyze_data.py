"""The network and the images that `nac-openood analyze` is told about."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from nac_openood.analysis.api import prepare
from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.extract import MOST_TRAIN
from nac_openood.cli import options
from nac_openood.cli.output import say
from nac_openood.detector.config import read_config
from nac_openood.errors import NACError
from nac_openood.sources.checkpoints import PUBLISHED, find_checkpoints
from nac_openood.sources.sets import Datasets, listed_sets

_SOURCES = ("--embedded", "--id-data", "--train")


def prepared(args: argparse.Namespace, out: Path) -> AnalysisData:
    """Read the data that the options name, or take what was read before."""
    given = [args.embedded, args.id_data is not None, args.train is not None]
    if sum(given) != 1:
        named = [name for name, is_given in zip(_SOURCES, given) if is_given]
        raise NACError(
            f"expected one of {', '.join(_SOURCES)} to say which images to use, got "
            f"{' and '.join(named) or 'none'}."
        )
    net, sets, arch = (_embedded if given[0] else _listed if given[1] else _own)(args)
    return prepare(
        net, sets, out, arch=arch,
        config=None if args.nac_config is None else read_config(args.nac_config),
        search=args.search,
        most_train=options.number(args, "most_train", MOST_TRAIN, 1),
        batch_size=options.number(args, "batch_size", 100, 1),
        workers=options.number(args, "workers", 0, 0),
        seed=args.seed, skip_bad=args.skip_bad, checkpoint=args.checkpoint or "",
        command=shlex.join(["nac-openood", *sys.argv[1:]]), say=say,
    )  # fmt: skip


def _embedded(args: argparse.Namespace) -> tuple[Any, Datasets, str]:
    from nac_openood.demo.embedded import embedded_sets
    from nac_openood.demo.run import NETWORKS
    from nac_openood.demo.trained import trained

    kind = args.arch or "resnet"
    if kind not in NETWORKS or args.checkpoint is not None:
        raise NACError(
            f"--embedded has networks of its own: expected --arch {' or '.join(NETWORKS)} and no "
            "--checkpoint."
        )
    # shifted digits count as in-distribution in full-spectrum detection only
    sets = replace(embedded_sets(say), shifted={})
    say(f"a small network for digits 0 to 7 ({kind}): trained now, or taken from the cache")
    net = trained(NETWORKS[kind], seed=args.seed)
    return options.on_device(net, args.device), sets, NETWORKS[kind]


def _listed(args: argparse.Namespace) -> tuple[Any, Datasets, str]:
    from nac_openood.sources.imglist import benchmark_named
    from nac_openood.sources.networks import transform_for

    benchmark = benchmark_named(args.id_data)
    path = _checkpoint(args)
    sets = listed_sets(
        benchmark, args.data_root or "data", transform_for(args.arch, benchmark, path),
        near=args.near, far=args.far, ood_val=args.ood_val,
    )  # fmt: skip
    return _network(args, benchmark.n_classes, path), sets, args.arch


def _own(args: argparse.Namespace) -> tuple[Any, Datasets, str]:
    from nac_openood.sources.domains import domainbed_transform
    from nac_openood.sources.own_sets import folder_sets

    path = _checkpoint(args)
    sets = folder_sets(
        args.train, val=args.val, test=args.test, near=args.near or (), far=args.far or (),
        ood_val=args.ood_val, transform=domainbed_transform(args.image_size), seed=args.seed,
    )  # fmt: skip
    return _network(args, sets.n_classes, path), sets, args.arch


def _checkpoint(args: argparse.Namespace) -> str:
    """The one checkpoint; needs --arch, too."""
    missing = [name for name in ("arch", "checkpoint") if getattr(args, name) is None]
    if missing:
        raise NACError(f"expected {' and '.join(map(options.option, missing))}: which network?")
    if args.checkpoint.startswith(PUBLISHED):
        return str(args.checkpoint)
    found = find_checkpoints([args.checkpoint])
    if len(found) > 1:
        raise NACError(
            f"{args.checkpoint} holds {len(found)} checkpoints; an analysis is about one: pass "
            f"e.g. {found[0].path}."
        )
    return found[0].path


def _network(args: argparse.Namespace, n_classes: int, path: str) -> Any:
    from nac_openood.sources.networks import network_of

    return options.on_device(network_of(args.arch, n_classes, path), args.device)
