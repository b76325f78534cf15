"""The network and the images that `nac-openood analyze` is told about."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from nac_openood.analysis.api import prepare_analysis
from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.extract import MOST_TRAIN
from nac_openood.cli import given, options
from nac_openood.cli.output import say
from nac_openood.detector.config import read_config
from nac_openood.errors import NACError
from nac_openood.sources.sets import Datasets

_SOURCES = ("embedded", *given.SOURCES)


def prepared(args: argparse.Namespace, out: Path) -> AnalysisData:
    """Read the data that the options name, or take what was read before."""
    named = [options.option(name) for name in _SOURCES if getattr(args, name) not in (None, False)]
    if len(named) != 1:
        raise NACError(
            f"expected one of {', '.join(map(options.option, _SOURCES))} to say which images to "
            f"use, got {' and '.join(named) or 'none'}."
        )
    net, sets, arch = _embedded(args) if args.embedded else _given(args)
    return prepare_analysis(
        net, sets, out, arch=arch,
        config=None if args.nac_config is None else read_config(args.nac_config),
        search=args.search,
        most_train=options.number(args, "most_train", MOST_TRAIN, 1),
        seed=args.seed, skip_bad=args.skip_bad, checkpoint=args.checkpoint or "",
        **options.loading(args), command=options.typed_command(), say=say,
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


def _given(args: argparse.Namespace) -> tuple[Any, Datasets, str]:
    path = given.one_checkpoint(args)
    sets = given.data_of(args, [path]).sets
    return given.loader_of(args, sets.n_classes)(path), sets, args.arch
