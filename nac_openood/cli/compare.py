"""`nac-openood compare`: the paper's table for your own checkpoint, with NAC's row in it."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Any, Callable, Optional

from nac_openood.benchmark.methods.table import METHODS
from nac_openood.cli import options
from nac_openood.cli.conducted import carry_out
from nac_openood.cli.output import say
from nac_openood.errors import NACError

_EXAMPLES = """\
examples:
  nac-openood compare --id-data cifar10 --data-root data --arch resnet18_32x32 \\
      --checkpoint results/cifar10_resnet18_32x32_base_e100_lr0.1_default --against paper
      all methods on every run s0, s1, ... of an OpenOOD folder: mean and standard deviation over
      runs, published numbers beside the measured ones
  nac-openood compare --id-data cifar10 --arch resnet18_32x32 --checkpoint best.ckpt \\
      --methods msp knn vim nac --far mnist trucks=my/photos/of/trucks
      some methods, and a folder of your own images as an OOD set
  nac-openood compare --id-data imagenet --arch resnet50 --checkpoint resnet50.pth --fsood
      full-spectrum: covariate-shifted ID images count as in-distribution
  nac-openood report compare
      write the tables and the page again, from the results in ./compare

Each result is saved as soon as it is ready: after an interruption, run the same command again to
continue. Writes results.csv, results.md, results.json and report.html into --out.
For exit codes see nac-openood --help.
"""


def add(commands: options.Commands) -> None:
    """Add the command to the parser."""
    baselines = sum(method.rule is None for method in METHODS.values())
    parser = options.add_command(
        commands, "compare", _compare, epilog=_EXAMPLES,
        help=f"compare NAC with {baselines} baselines: tables, plots, published numbers",
        description="Run OOD detection methods on a checkpoint and tabulate how well they do.",
    )  # fmt: skip
    group = parser.add_argument_group("network and images")
    group.add_argument(
        "--checkpoint", required=True, nargs="+", metavar="PATH",
        help="files, folders with best.ckpt, or an OpenOOD folder with s0, s1, ...; or "
        "torchvision:IMAGENET1K_V1 for published weights",
    )  # fmt: skip
    options.add(group, "--arch", "--id-data", required=True)
    options.add(group, "--data-root", "--ood-val", "--skip-bad")
    sets = "NAME of a list test_NAME, or NAME=FOLDER of images (default: those of the benchmark)"
    group.add_argument("--near", nargs="*", metavar="SET", help=f"near-OOD sets: {sets}")
    group.add_argument("--far", nargs="*", metavar="SET", help=f"far-OOD sets: {sets}")
    group.add_argument(
        "--fsood", action="store_true", help="full-spectrum: add covariate-shifted ID sets"
    )
    _add_methods(parser)
    group = parser.add_argument_group("how to run")
    options.add(group, "--out", default="compare")
    group.add_argument(
        "--against", choices=["paper"], help="put the published numbers beside the measured ones"
    )
    options.add(group, "--batch-size", "--workers", "--device", "--seed")


def _add_methods(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("methods")
    add = group.add_argument
    add("--methods", nargs="+", metavar="M", help=f"some of {', '.join(METHODS)} (default: all)")
    add(
        "--no-search", action="store_false", dest="search",
        help="use default hyperparameters instead of searching them on validation images",
    )  # fmt: skip
    options.add(group, "--backend")
    add("--opengan", metavar="FILE", help="OpenGAN's discriminator (best_DNet.ckpt)")
    add("--nac-config", metavar="YAML", help="NAC's settings and sweep (default: those shipped)")
    add(
        "--layers", nargs="+", metavar="LAYER", help="use only these of NAC's layers (default: all)"
    )
    add(
        "--nac-strategy", choices=options.STRATEGIES, default="grid",
        help="strategy of NAC's search (default: %(default)s, the authors')",
    )  # fmt: skip


def _compare(args: argparse.Namespace) -> int:
    from pathlib import Path

    from nac_openood.benchmark.api import compare
    from nac_openood.detector.config import read_config
    from nac_openood.sources.checkpoints import find_checkpoints
    from nac_openood.sources.imglist import benchmark_named
    from nac_openood.sources.sets import listed_sets

    benchmark = benchmark_named(args.id_data)
    checkpoints = find_checkpoints(args.checkpoint)
    sets = listed_sets(
        benchmark, args.data_root or "data", _transform(args, benchmark), near=args.near,
        far=args.far, full_spectrum=args.fsood, ood_val=args.ood_val,
    )  # fmt: skip
    config = None if args.nac_config is None else read_config(args.nac_config)
    same = (
        "arch", "methods", "search", "backend", "opengan", "nac_strategy", "layers", "against",
        "out", "batch_size", "workers", "seed", "skip_bad",
    )  # fmt: skip
    return carry_out(
        Path(args.out),
        lambda: compare(
            {checkpoint.name: checkpoint.path for checkpoint in checkpoints},
            **vars(sets),
            **{name: getattr(args, name) for name in same},
            load=_load(args.arch, benchmark.n_classes, args.device),
            nac_config=config,
            command=shlex.join(["nac-openood", *sys.argv[1:]]),
            say=say,
        ),
    )


def _transform(args: argparse.Namespace, benchmark: Any) -> Any:
    """The transform of the images, which all checkpoints must share."""
    from nac_openood.sources.networks import transform_for

    found = {repr(t): t for c in args.checkpoint for t in [transform_for(args.arch, benchmark, c)]}
    if len(found) > 1:
        raise NACError(
            f"these checkpoints need different transforms of the images: {', '.join(found)}. "
            "Compare them one by one."
        )
    return next(iter(found.values()))


def _load(arch: str, n_classes: int, device: Optional[str]) -> Callable[[str], Any]:
    from nac_openood.sources.networks import network_of

    return lambda path: options.on_device(network_of(arch, n_classes, path), device)
