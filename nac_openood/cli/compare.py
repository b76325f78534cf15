"""`nac-openood compare`: the paper's table for your own checkpoint, with NAC's row in it."""

from __future__ import annotations

import argparse
from pathlib import Path

from nac_openood.benchmark.methods.table import METHODS
from nac_openood.cli import given, given_data, options
from nac_openood.cli.conducted import carry_out
from nac_openood.cli.output import say

_EXAMPLES = f"""\
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
  nac-openood compare --arch net.py:make --checkpoint net.pt --transform transform.yml \\
      --train birds/train --val birds/val --test birds/test --far cars=photos/of/cars
      your own network and images; without OOD validation images the search uses surrogates made
      from ID validation images, which the results say
  nac-openood report compare
      write the tables and the page again, from the results in ./compare

Each result is saved as soon as it is ready: after an interruption, run the same command again to
continue. Writes results.csv, results.md, results.json and report.html into --out.
For exit codes see nac-openood --help.

{options.FORMS}"""


def add(commands: options.Commands) -> None:
    """Add the command to the parser."""
    baselines = sum(method.rule is None for method in METHODS.values())
    parser = options.add_command(
        commands, "compare", _compare, epilog=_EXAMPLES,
        help=f"compare NAC with {baselines} baselines: tables, plots, published numbers",
        description="Run OOD detection methods on a checkpoint and tabulate how well they do.",
    )  # fmt: skip
    group = parser.add_argument_group("network and images")
    options.add(group, "--arch")
    options.add(
        group, "--checkpoint", nargs="+",
        help="files, folders with best.ckpt, or an OpenOOD folder with s0, s1, ...; or "
        "torchvision:IMAGENET1K_V1 for published weights",
    )  # fmt: skip
    options.add(group, "--transform", "--image-size", "--train", "--val", "--test")
    options.add(group, "--near", "--far", "--ood-val", "--id-data", "--data-root", "--skip-bad")
    group.add_argument(
        "--fsood", action="store_true", help="full-spectrum: add covariate-shifted ID sets"
    )
    _add_methods(parser)
    group = parser.add_argument_group("how to run")
    options.add(group, "--out", default="compare")
    options.add(group, "--against", "--batch-size", "--workers", "--device", "--seed")


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
    options.add(group, "--nac-config")
    add(
        "--layers", nargs="+", metavar="LAYER", help="use only these of NAC's layers (default: all)"
    )
    add(
        "--nac-strategy", choices=options.STRATEGY_NAMES, default="grid",
        help="strategy of NAC's search (default: %(default)s, the authors')",
    )  # fmt: skip


def _compare(args: argparse.Namespace) -> int:
    from nac_openood.benchmark.api import compare
    from nac_openood.detector.config import read_config

    config = None if args.nac_config is None else read_config(args.nac_config)
    checkpoints = given.checkpoints_of(args)
    data = given_data.data_of(args, list(checkpoints.values()))
    load = given.loader_of(args, data.sets.n_classes)
    same = (
        "arch", "methods", "search", "backend", "opengan", "nac_strategy", "layers", "against",
        "out", "batch_size", "workers", "seed", "skip_bad",
    )  # fmt: skip
    return carry_out(
        Path(args.out),
        lambda: compare(
            {name: load(None) if path is None else path for name, path in checkpoints.items()},
            **vars(data.sets),
            **{name: getattr(args, name) for name in same},
            load=load,
            nac_config=config,
            command=options.typed_command(),
            say=say,
        ),
    )
