"""The network and the images that `nac-openood analyze` is told about."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from nac_openood.analysis.api import prepare_analysis
from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.extract import MOST_TRAIN
from nac_openood.cli import given, given_data, options
from nac_openood.cli.output import say
from nac_openood.detector.config import read_config
from nac_openood.errors import NACError
from nac_openood.sources.sets import Datasets


def prepared(args: argparse.Namespace, out: Path) -> AnalysisData:
    """Read the data that the options name, or take what was read before."""
    given_data.one_source(args, ("embedded", *given_data.SOURCES))
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
    from nac_openood.demo.run import NETWORKS, network_and_sets

    kind = args.arch or "resnet"
    if kind not in NETWORKS or args.checkpoint is not None:
        raise NACError(
            f"--embedded has networks of its own: expected --arch {' or '.join(NETWORKS)} and no "
            "--checkpoint."
        )
    net, sets = network_and_sets(kind, args.seed, say)
    return options.on_device(net, args.device), sets, NETWORKS[kind]


def _given(args: argparse.Namespace) -> tuple[Any, Datasets, str]:
    path = given.one_checkpoint(args)
    sets = given_data.data_of(args, [path]).sets
    return given.loader_of(args, sets.n_classes)(path), sets, args.arch
