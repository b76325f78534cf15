"""`nac-openood compare`: the paper's table for one's own checkpoint, with NAC's row in it."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

from nac_openood.bench.methods import METHODS, NAC, checked_methods
from nac_openood.cli.conducted import carry_out, say
from nac_openood.cli.options import at_least, on_device
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from nac_openood.compare.study import Study
    from nac_openood.config import NACConfig

_EXAMPLES = """\
examples:
  nac-openood compare --id-data cifar10 --data-root data --arch resnet18_32x32 \\
      --checkpoint results/cifar10_resnet18_32x32_base_e100_lr0.1_default --against paper
      all methods on every run s0, s1, ... of an OpenOOD folder: mean and std over runs,
      published numbers beside the measured ones
  nac-openood compare --id-data cifar10 --arch resnet18_32x32 --checkpoint best.ckpt \\
      --methods msp knn vim nac --far mnist trucks=my/photos/of/trucks
      some methods, and images of one's own as an OOD set
  nac-openood compare --id-data imagenet --arch resnet50 --checkpoint resnet50.pth --fsood
      full-spectrum: covariate-shifted ID images count as in-distribution
  nac-openood report compare
      write the tables and the page again, from the results in ./compare

Every result is written as it is made: run the same command again after an interruption, and it
goes on. Writes results.csv, results.md, results.json and report.html into --out.
exit code: 0 all methods done, 1 an error, 2 some methods failed (see the table) or options that
are none, 130 Ctrl-C.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "compare",
        help="NAC and 21 baselines on a benchmark: tables, pictures, published numbers",
        description="Run OOD detection methods on a checkpoint and tabulate them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_data(parser)
    _add_methods(parser)
    add = parser.add_argument_group("how to run").add_argument
    add("--out", default="compare", metavar="DIR", help="folder of results (./%(default)s)")
    add("--against", choices=["paper"], help="published numbers beside the measured ones")
    add("--batch-size", type=int, help="of images (100)")
    add("--workers", type=int, help="processes that load images (0)")
    add("--device", help="e.g. cuda (where there is one, else cpu)")
    add("--seed", type=int, default=0, help="of everything random (%(default)s)")
    add("--skip-bad", action="store_true", help="leave out images that cannot be read")
    parser.set_defaults(run=_compare)


def _add_data(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("network and images").add_argument
    add("--id-data", required=True, metavar="NAME", help="cifar10, cifar100, imagenet200, imagenet")
    add("--data-root", default="data", metavar="DIR", help="with benchmark_imglist/ (./data)")
    add("--arch", required=True, help="resnet18_32x32, a torchvision model, or timm:NAME")
    add(
        "--checkpoint", required=True, nargs="+", metavar="PATH",
        help="files, folders with best.ckpt, or an OpenOOD folder with s0, s1, ...; or "
        "torchvision:IMAGENET1K_V1 for published weights",
    )  # fmt: skip
    sets = "NAME of a list test_NAME, or NAME=FOLDER of images (the benchmark's)"
    add("--near", nargs="*", metavar="SET", help=f"near-OOD sets: {sets}")
    add("--far", nargs="*", metavar="SET", help=f"far-OOD sets: {sets}")
    add("--ood-val", metavar="SET", help="OOD validation set, or 'none': nothing is "
        "searched then (`search` has stand-ins)")  # fmt: skip
    add("--fsood", action="store_true", help="full-spectrum: with covariate-shifted ID sets")


def _add_methods(parser: argparse.ArgumentParser) -> None:
    from nac_openood.compare.backends import AUTO, BACKENDS
    from nac_openood.search import STRATEGIES

    add = parser.add_argument_group("methods").add_argument
    add("--methods", nargs="+", default=list(METHODS), metavar="M", help=", ".join(METHODS))
    add("--backend", choices=BACKENDS, default=AUTO, help="whose baselines (%(default)s: OpenOOD's "
        "where it is installed, pytorch-ood's otherwise)")  # fmt: skip
    add("--opengan", metavar="FILE", help="OpenGAN's discriminator (best_DNet.ckpt)")
    add("--nac-config", metavar="YAML", help="NAC's settings and sweep (those shipped)")
    add("--layers", nargs="+", metavar="LAYER", help="NAC's layers, of those in its settings")
    add("--nac-strategy", choices=list(STRATEGIES), default="grid", help="of NAC's search "
        "(%(default)s: the authors')")  # fmt: skip


def _compare(args: argparse.Namespace) -> int:
    from nac_openood.bench.published import published

    if args.against:
        published(args.id_data, args.arch)  # where there are none, say so now
    return carry_out(study_of(args), skip_bad=args.skip_bad, paper=bool(args.against), say=say)


def study_of(args: argparse.Namespace) -> Study:
    """What the options ask for."""
    from nac_openood.bench.checkpoints import find_checkpoints
    from nac_openood.bench.imglist import benchmark_named
    from nac_openood.bench.sets import listed_sets
    from nac_openood.compare.study import Study

    benchmark = benchmark_named(args.id_data)
    sets = listed_sets(
        benchmark, args.data_root, _transform(args, benchmark), near=args.near,
        far=args.far, full_spectrum=args.fsood, ood_val=args.ood_val,
    )  # fmt: skip
    return Study(
        sets=sets,
        arch=args.arch,
        network=_network(args.arch, benchmark.n_classes, args.device),
        runs=tuple(find_checkpoints(args.checkpoint)),
        methods=tuple(checked_methods(args.methods)),
        make=_make(args),
        out=Path(args.out),
        batch_size=at_least("batch_size", args.batch_size, 100, 1),
        workers=at_least("workers", args.workers, 0, 0),
        seed=args.seed,
        command=shlex.join(["nac-openood", *sys.argv[1:]]),
    )


def _transform(args: argparse.Namespace, benchmark: Any) -> Any:
    """One for all checkpoints, which see the same images."""
    from nac_openood.bench.networks import transform_for

    found = {repr(t): t for c in args.checkpoint for t in [transform_for(args.arch, benchmark, c)]}
    if len(found) > 1:
        raise NACError(
            f"these checkpoints want their images prepared differently: {', '.join(found)}. "
            "Compare them one by one."
        )
    return next(iter(found.values()))


def _network(arch: str, n_classes: int, device: Optional[str]) -> Callable[[Any], Any]:
    from nac_openood.bench.networks import network_of

    return lambda run: on_device(network_of(arch, n_classes, run.path), device)


def _make(args: argparse.Namespace) -> Any:
    from nac_openood.compare.backends import chosen_backend, scorers
    from nac_openood.compare.nac import NACScorer

    baselines = [method for method in checked_methods(args.methods) if method != NAC]
    backend = chosen_backend(args.backend, say) if baselines else args.backend
    config = _config(args)
    opengan = None if args.opengan is None else Path(args.opengan)
    return scorers(backend, lambda: NACScorer(config, args.nac_strategy, args.layers), opengan)


def _config(args: argparse.Namespace) -> Optional[NACConfig]:
    from nac_openood.config import read_config

    return None if args.nac_config is None else read_config(args.nac_config)
