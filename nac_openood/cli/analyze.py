"""`nac-openood analyze`: the paper's analyses on your own checkpoint, from one pass over it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from nac_openood.analysis import ALL, KINDS, chosen_kinds
from nac_openood.cli import inputs
from nac_openood.cli.options import command
from nac_openood.cli.output import interrupted, open_page, print_error, publish, say, typed_command
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from nac_openood.analysis.data import AnalysisData
    from nac_openood.analysis.finding import Finding

_KINDS = "\n".join(f"  {kind.name:<12} {kind.help}" for kind in KINDS.values())


@command(
    """
  kinds KIND...           what to analyze; see below
network and images:
  --embedded              a small network, trained on images that come with libraries
  --arch --checkpoint --transform --image-size --train --val --test --near --far --ood-val
  --id-data --data-root --skip-bad
settings and studies:
  --nac-config
  --no-search             use NAC's settings as they are instead of searching them
  --repeats N: int        repeats of random draws (default: 5)
  --shares S...: float    samples: shares of the training data
  --steepness A...: float   states, params: values of alpha
  --bounds R...: float    params: values of r
  --n-bins M...: int      params: values of M
  --neuron N: int         states: the neuron to show
  --ood-set NAME          states: the OOD set to show (default: the first far)
  --methods M...          near: the methods to compare with
  --most-samples N: int   cost: measure on at most N samples
  --epochs N: int         schemes: epochs of training (default: 15)
  --backend
how to run:
  --out DIR = analyze
  --against
  --most-train N: int     read at most N training images (default: 50000)
  --batch-size --workers --device --seed --open
""",
    f"""
kinds:
{_KINDS}
  {ALL:<12} all of these except those that need other networks or measure time (schemes, cost)
{inputs.FORMS}""",
)
def analyze_command(args: argparse.Namespace) -> int:
    r"""Analyze NAC on a checkpoint: each kind of analysis repeats a table or figure of the paper.

    Examples:
      nac-openood analyze all --embedded
          every analysis on images that come with libraries, in minutes
      nac-openood analyze layers params --id-data cifar10 --data-root data --arch resnet18_32x32 \
          --checkpoint best.ckpt --against paper
          on OpenOOD's CIFAR-10 benchmark, with the published numbers beside the measured ones
      nac-openood analyze states --train PACS/photo --far sketch=PACS/sketch --arch resnet50 \
          --checkpoint erm.pt --image-size 224
          on image folders of your own, with a subfolder per class

    The network is run once; all kinds but cost and schemes work on what was read then, which is
    kept in DIR/readings. After an interruption, run the same command again to continue. Each kind
    writes KIND.csv, KIND.json and its figures into --out, and a section of report.html.
    For exit codes see nac-openood --help.
    """
    kinds = chosen_kinds(args.kinds)  # report a typo before the slow part

    from nac_openood.analysis.api import analyze
    from nac_openood.analysis.data import Options

    out = Path(args.out)
    names = ["against", "seed", "repeats", "shares", "steepness", "bounds", "n_bins", "neuron"]
    names += ["ood_set", "methods", "backend", "most_samples", "epochs"]
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    failed: list[str] = []
    page = None
    try:
        for kind, found in analyze(_data(args, out), args.kinds, Options(say=say, **options)):
            if isinstance(found, NACError):
                print_error(f"{kind}: {found}")
                failed.append(kind)
                continue
            page = _publish(found, out)
    except KeyboardInterrupt:
        return interrupted(out)
    open_page(page, args.open)
    return 0 if not failed else 1 if len(failed) == len(kinds) else 2


def _publish(found: Finding, out: Path) -> Optional[Path]:
    from nac_openood.report.findings import (
        finding_text,
        write_analysis_page,
        write_figures,
        write_finding,
    )

    return publish(
        out,
        f"\n{finding_text(found)}\n",
        lambda: write_finding(found, out),
        "figures",
        lambda: [*write_figures(found, out), write_analysis_page(out)],
    )


def _data(args: argparse.Namespace, out: Path) -> AnalysisData:
    """Read the data of the options, or load what was read before."""
    from nac_openood.analysis.api import MOST_TRAIN, prepare_analysis
    from nac_openood.demo import NETWORKS, network_and_sets
    from nac_openood.detector.config import read_config

    inputs.check_one_source(args)
    if args.embedded:
        kind = args.arch or "resnet"
        if kind not in NETWORKS or args.checkpoint is not None:
            raise NACError(
                f"--embedded has networks of its own: expected --arch {' or '.join(NETWORKS)} and "
                "no --checkpoint."
            )
        net, sets = network_and_sets(kind, args.seed, say)
        net, arch = inputs.on_device(net, args.device), NETWORKS[kind]
    else:
        path, arch = inputs.one_checkpoint(args), args.arch
        sets = inputs.data_of(args, [path]).sets
        net = inputs.network_loader(args, sets.n_classes)(path)
    return prepare_analysis(
        net,
        sets,
        out,
        arch=arch,
        config=None if args.nac_config is None else read_config(args.nac_config),
        search=args.search,
        most_train=inputs.number(args, "most_train", MOST_TRAIN, 1),
        seed=args.seed,
        skip_bad=args.skip_bad,
        checkpoint=args.checkpoint or "",
        **inputs.loading(args),
        command=typed_command(),
        say=say,
    )
