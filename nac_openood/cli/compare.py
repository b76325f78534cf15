"""`nac-openood compare`: the paper's table for your own checkpoint, with NAC's row in it."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Any, Callable, Optional

from nac_openood.benchmark.methods.table import AUTO, BACKENDS, METHODS
from nac_openood.cli.conducted import carry_out
from nac_openood.cli.options import STRATEGIES, add_loading, add_seed, on_device
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


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "compare",
        help=f"compare NAC with {len(METHODS) - 1} baselines: tables, plots, published numbers",
        description="Run OOD detection methods on a checkpoint and tabulate how well they do.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_data(parser)
    _add_methods(parser)
    group = parser.add_argument_group("how to run")
    add = group.add_argument
    add(
        "--out",
        default="compare",
        metavar="DIR",
        help="folder of the results (default: ./%(default)s)",
    )
    add("--against", choices=["paper"], help="put the published numbers beside the measured ones")
    add_loading(group)
    add_seed(group)
    add("--skip-bad", action="store_true", help="leave out images that cannot be read")
    parser.set_defaults(run=_compare)


def _add_data(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("network and images").add_argument
    add("--id-data", required=True, metavar="NAME", help="cifar10, cifar100, imagenet200, imagenet")
    add(
        "--data-root", default="data", metavar="DIR", help="OpenOOD's data folder (default: ./data)"
    )
    add("--arch", required=True, help="resnet18_32x32, a torchvision model, or timm:NAME")
    add(
        "--checkpoint", required=True, nargs="+", metavar="PATH",
        help="files, folders with best.ckpt, or an OpenOOD folder with s0, s1, ...; or "
        "torchvision:IMAGENET1K_V1 for published weights",
    )  # fmt: skip
    sets = "NAME of a list test_NAME, or NAME=FOLDER of images (default: those of the benchmark)"
    add("--near", nargs="*", metavar="SET", help=f"near-OOD sets: {sets}")
    add("--far", nargs="*", metavar="SET", help=f"far-OOD sets: {sets}")
    add(
        "--ood-val", metavar="SET",
        help="OOD validation set: NAME of a list val_NAME, NAME=FOLDER, or 'none' for surrogates "
        "made from ID validation images (default: that of the benchmark)",
    )  # fmt: skip
    add("--fsood", action="store_true", help="full-spectrum: add covariate-shifted ID sets")


def _add_methods(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("methods").add_argument
    add("--methods", nargs="+", metavar="M", help=f"some of {', '.join(METHODS)} (default: all)")
    add(
        "--no-search", action="store_false", dest="search",
        help="use default hyperparameters instead of searching them on validation images",
    )  # fmt: skip
    add(
        "--backend", choices=BACKENDS, default=AUTO,
        help="library that provides the baselines (default: openood if installed, else "
        "pytorch-ood)",
    )  # fmt: skip
    add("--opengan", metavar="FILE", help="OpenGAN's discriminator (best_DNet.ckpt)")
    add("--nac-config", metavar="YAML", help="NAC's settings and sweep (default: those shipped)")
    add(
        "--layers", nargs="+", metavar="LAYER", help="use only these of NAC's layers (default: all)"
    )
    add(
        "--nac-strategy", choices=STRATEGIES, default="grid",
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
        benchmark, args.data_root, _transform(args, benchmark), near=args.near,
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

    return lambda path: on_device(network_of(arch, n_classes, path), device)
