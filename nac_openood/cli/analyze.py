"""`nac-openood analyze`: the paper's analyses on your own checkpoint, from one pass over it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from nac_openood.analysis.table import ALL, KINDS, chosen_kinds
from nac_openood.cli import given, given_data, options
from nac_openood.cli.output import complain, interrupted, open_page, publish, say
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from nac_openood.analysis.data import AnalysisData
    from nac_openood.analysis.finding import Finding
    from nac_openood.sources.sets import Datasets

_KINDS = "\n".join(f"  {kind.name:<12} {kind.help}" for kind in KINDS.values())
_EXAMPLES = f"""\
kinds:
{_KINDS}
  {ALL:<12} all of these except those that need other networks or measure time (schemes, cost)

examples:
  nac-openood analyze all --embedded
      every analysis on images that come with libraries, in minutes
  nac-openood analyze layers params --id-data cifar10 --data-root data --arch resnet18_32x32 \\
      --checkpoint best.ckpt --against paper
      on OpenOOD's CIFAR-10 benchmark, with the published numbers beside the measured ones
  nac-openood analyze states --train PACS/photo --far sketch=PACS/sketch --arch resnet50 \\
      --checkpoint erm.pt --image-size 224
      on image folders of your own, with a subfolder per class

The network is run once; all kinds but cost and schemes work on what was read then, which is kept in
DIR/readings. After an interruption, run the same command again to continue. Each kind writes
KIND.csv, KIND.json and its figures into --out, and a section of report.html.
For exit codes see nac-openood --help.

{options.FORMS}"""


def add(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_command(
        commands, "analyze", _analyze, epilog=_EXAMPLES,
        help="the paper's analyses: layers, settings, states, number of samples, ...",
        description="Analyze NAC on a checkpoint: each kind of analysis repeats a table or "
        "figure of the paper.",
    )  # fmt: skip
    parser.add_argument("kinds", nargs="+", metavar="KIND", help="what to analyze; see below")
    _add_data(parser)
    _add_studies(parser)
    group = parser.add_argument_group("how to run")
    options.add(group, "--out", default="analyze")
    options.add(group, "--against")
    group.add_argument(
        "--most-train", type=int, metavar="N",
        help="read at most N training images (default: 50000)",
    )  # fmt: skip
    options.add(group, "--batch-size", "--workers", "--device", "--seed", "--open")


def _add_data(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("network and images")
    add = group.add_argument
    add(
        "--embedded", action="store_true",
        help="images that come with libraries, and a small network that is trained on them",
    )  # fmt: skip
    options.add(group, "--arch", "--checkpoint", "--transform")
    options.add(group, "--image-size", "--train", "--val", "--test", "--near", "--far", "--ood-val")
    options.add(group, "--id-data", "--data-root", "--skip-bad")


def _add_studies(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings and studies")
    add = group.add_argument
    options.add(group, "--nac-config")
    add(
        "--no-search", action="store_false", dest="search",
        help="use NAC's settings as they are instead of searching them on validation images",
    )  # fmt: skip
    add("--repeats", type=int, metavar="N", help="repeats of random draws (default: 5)")
    add("--shares", type=float, nargs="+", metavar="S", help="samples: shares of the training data")
    add("--steepness", type=float, nargs="+", metavar="A", help="states, params: values of alpha")
    add("--bounds", type=float, nargs="+", metavar="R", help="params: values of r")
    add("--n-bins", type=int, nargs="+", metavar="M", help="params: values of M")
    add("--neuron", type=int, metavar="N", help="states: the neuron to show")
    add("--ood-set", metavar="NAME", help="states: the OOD set to show (default: the first far)")
    add("--methods", nargs="+", metavar="M", help="near: the methods to compare with")
    add("--most-samples", type=int, metavar="N", help="cost: measure on at most N samples")
    add("--epochs", type=int, metavar="N", help="schemes: epochs of training (default: 15)")
    options.add(group, "--backend")


def _analyze(args: argparse.Namespace) -> int:
    chosen_kinds(args.kinds)  # a typo is noticed before the long part

    from nac_openood.analysis.api import analyze
    from nac_openood.analysis.data import Options

    out = Path(args.out)
    same = (
        "against", "seed", "repeats", "shares", "steepness", "bounds", "n_bins", "neuron",
        "ood_set", "methods", "backend", "most_samples", "epochs",
    )  # fmt: skip
    asked = {name: getattr(args, name) for name in same}
    chosen = Options(say=say, **{name: value for name, value in asked.items() if value is not None})
    failed: list[str] = []
    page = None
    try:
        for kind, found in analyze(_prepared(args, out), args.kinds, chosen):
            if isinstance(found, NACError):
                complain(f"{kind}: {found}")
                failed.append(kind)
            else:
                page = _publish(found, out)
    except KeyboardInterrupt:
        return interrupted(out)
    open_page(page, args.open)
    return 0 if not failed else 1 if len(failed) == len(chosen_kinds(args.kinds)) else 2


def _publish(found: Finding, out: Path) -> Optional[Path]:
    """Show what was found, and write its files and the page, which is returned."""
    from nac_openood.report.analysis import write

    return publish(
        out,
        write.finding_text(found),
        lambda: write.write_finding(found, out),
        "figures",
        lambda: [*write.write_figures(found, out), write.write_analysis_page(out)],
    )


def _prepared(args: argparse.Namespace, out: Path) -> AnalysisData:
    """Read the data that the options name, or take what was read before."""
    from nac_openood.analysis.api import MOST_TRAIN, prepare_analysis
    from nac_openood.detector.config import read_config

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
