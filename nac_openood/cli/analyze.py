"""`nac-openood analyze`: the paper's analyses on your own checkpoint, from one pass over it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nac_openood.analysis import ALL, KINDS, PLUS, analyze, chosen_kinds
from nac_openood.cli import inputs, output
from nac_openood.cli.options import command
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from nac_openood.analysis.data import AnalysisData

#: The options for data.
_DATA = ("train", "val", "test", "near", "far", "ood_val", "id_data")
_KINDS = "\n".join(f"  {kind.name:<12} {kind.help}" for kind in KINDS.values())


@command(
    """
  kinds KIND...           what to analyze; see below
network and images:
  --embedded              a small network, trained on images that come with libraries
  --arch --checkpoint --transform --image-size --train --val --test --near --far --ood-val
  --id-data --data-root --skip-bad
settings and studies:
  --rule {nac,nac_plus} = nac   what to analyze (default: %(default)s, the paper's); for nac_plus
      there are layers, samples, calibration and cost
  --nac-config
  --no-search             use NAC's settings as they are instead of searching them
  --repeats N: count      repeats of random draws (default: 5)
  --shares S...: float    samples: shares of the training data
  --steepness A...: float   states, params: values of alpha
  --bounds R...: float    params: values of r
  --n-bins M...: count    params: values of M
  --neuron N: int         states: the neuron to show
  --ood-set NAME          states: the OOD set to show (default: the first far)
  --methods M...          near: the methods to compare with
  --most-samples N: count   cost: measure on at most N samples
  --epochs N: count       schemes: epochs of training (default: 15)
  --backend
how to run:
  --out DIR = analyze
  --against
  --most-train N: count   read at most N training images (default: 50000)
  --batch-size --workers --device --seed --open
""",
    f"""
kinds:
{_KINDS}
  {ALL:<12} all of these except those that need other networks or measure time (schemes, cost)
{inputs.FORMS}""",
)
def analyze_command(args: argparse.Namespace) -> int:
    r"""Study NAC or NAC+ on a checkpoint. Most kinds repeat a table or figure of the paper.

    Examples:
      nac-openood analyze all --embedded
          NAC: every analysis on images that come with libraries, in minutes
      nac-openood analyze all --rule nac_plus --embedded
          the studies that make sense for NAC+: its layers and parts, samples, calibration
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
    kinds = chosen_kinds(args.kinds, args.rule)  # report a typo before the slow part

    from nac_openood.analysis.data import Options
    from nac_openood.report import findings

    out = Path(args.out)
    options = Options(say=output.say, **inputs.arguments(args, *vars(Options())))
    failed, page = 0, None
    for kind, found in analyze(_data(args, out), args.kinds, options):
        if isinstance(found, NACError):
            output.print_error(f"{kind}: {found}")
            failed += 1
            continue
        output.show(f"\n{findings.finding_text(found)}\n")

        def draw(found: Any = found) -> list[Path]:
            return [*findings.write_figures(found, out), findings.write_analysis_page(out)]

        page = output.add_figures(out, findings.write_finding(found, out), draw)
    output.open_page(page, args.open)
    return 0 if not failed else 1 if failed == len(kinds) else 2


def _data(args: argparse.Namespace, out: Path) -> AnalysisData:
    """Read the data of the options, or load what was read before."""
    from nac_openood.analysis.data import prepare_analysis
    from nac_openood.demo.trained import NETWORKS, network_and_sets
    from nac_openood.detector.config import NACConfig, read_config

    if args.rule == PLUS and (args.nac_config is not None or not args.search):
        raise NACError("--nac-config and --no-search are about NAC: leave them out for nac_plus.")
    config = NACConfig({}, rule=PLUS) if args.rule == PLUS else None
    if args.embedded:
        arch = args.arch or "resnet"
        used = inputs.arguments(args, "checkpoint", "transform", "image_size", *_DATA)
        if arch not in NETWORKS or used:
            raise NACError(
                f"--embedded has networks and images of its own: expected --arch "
                f"{' or '.join(NETWORKS)}, and no {', '.join(map(inputs.option, used)) or 'other'}."
            )
        net, sets = network_and_sets(arch, args.seed, output.say)
        net, arch = inputs.on_device(net, args.device), NETWORKS[arch]
    else:
        path, arch = inputs.one_checkpoint(args), args.arch
        sets, _ = inputs.data_of(args, [path])
        net = inputs.network_loader(args, sets.n_classes)(path)
    return prepare_analysis(
        net,
        sets,
        out,
        arch=arch,
        config=config if args.nac_config is None else read_config(args.nac_config),
        **inputs.arguments(args, "search", "most_train", "seed", "skip_bad", "checkpoint"),
        **inputs.loading(args),
        command=output.typed_command(),
        say=output.say,
    )
