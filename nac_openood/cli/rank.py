"""`nac-openood rank`: which checkpoint of a training run will generalize best."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nac_openood.cli import inputs
from nac_openood.cli.options import command
from nac_openood.cli.output import add_figures, open_page, say, show, typed_command
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from nac_openood.evaluation.ranking import RankedRuns


@command(
    """
checkpoints and images:
  checkpoints [CHECKPOINTS...]   files, or folders of files, of one training run
  --arch
  --train DIR...          folders of the source domains
  --val DIR...            folders of held-out data of the source domains (default: 20 %% of --train)
  --test DIR...           folders of target domains
  --trial N: int = 0      trial number, which seeds the split of --train (default: %(default)s)
  --runs DIR              folder of runs: DIR/<target domain>/trial_<number>
  --data DIR              with --runs: folder of all domains, e.g. PACS
  --image-size N: count   images are resized to N x N and normalized as for ImageNet (default: 224)
  --transform T           in place of --image-size (see below)
how to rank:
  --layer NAME = auto     layer to read (default: avgpool in ResNets, the last norm2 in ViTs)
  --space NAME            settings to choose from: vlcs, pacs, officehome, terraincognita (the
      paper's) or all (default: by the name of the data folder)
  --out DIR = rank
  --against --open --batch-size --workers --device
demo:
  --demo                  train on images that come with libraries, and rank the checkpoints
  --seed
""",
    inputs.NETWORK_FORMS,
)
def rank_command(args: argparse.Namespace) -> int:
    r"""Rank the checkpoints of a training run by their neuron activation coverage.

    Coverage is measured on training data; in the paper it correlates with accuracy on unseen
    domains.

    Examples:
      nac-openood rank run/*.pt --arch resnet50 --space pacs \
          --train PACS/cartoon PACS/photo PACS/sketch --test PACS/art_painting
          rank the checkpoints of a run; 20 % of each training domain is held out for validation
      nac-openood rank run/ --arch resnet50 --train train/photo train/sketch \
          --val val/photo val/sketch
          all checkpoints in a folder, validation data of your own, no target domain
      nac-openood rank --runs study --data PACS --arch resnet18 --against paper
          leave one domain out: runs study/<target domain>/trial_<number>, the paper's table
      nac-openood rank --demo
          train on images that come with libraries, and rank the checkpoints

    A domain is a folder with a folder of images for each class, as in DomainBed:
    PACS/photo/dog/1.jpg. Checkpoints are state dicts, or DomainBed's own files (DomainBed need not
    be installed). The settings of NAC-ME are chosen by validation accuracy. Target domains are used
    only to measure how well that worked. RC is Spearman's rank correlation; equal values share
    their mean rank.

    Each checkpoint is read once and kept: after an interruption, run the same command again to
    continue. Writes results.csv, results.md, results.json and report.html into --out.
    For exit codes see nac-openood --help.
    """
    from nac_openood.demo.ranking import run_rank_demo
    from nac_openood.report import checkpoints, render

    out = Path(args.out)
    if args.demo:
        if args.checkpoints or args.train or args.runs:
            raise NACError("--demo makes its own checkpoints: leave out yours, --train and --runs.")
        ranked = run_rank_demo(out, seed=args.seed, command=typed_command(), say=say)
    else:
        ranked = _ranked(args, out)
    table, document = checkpoints.ranked_csv(ranked), checkpoints.ranked_document(ranked)
    show(f"\n{checkpoints.ranked_summary(ranked)}\n")
    written = [ranked.save(out), *render.write_results(out, table, document)]
    open_page(add_figures(out, written, lambda: [render.write_html(out, document)]), args.open)
    return 0


def _ranked(args: argparse.Namespace, out: Path) -> RankedRuns:
    """Rank the checkpoints of one run, or of many runs, each without its target domain."""
    from nac_openood.benchmark.paper import published
    from nac_openood.evaluation import rank
    from nac_openood.evaluation.ranking import RankedRun, RankedRuns

    one, many = (args.checkpoints, args.train), (args.runs, args.data)
    if args.arch is None or all(one) == all(many) or any(one) == any(many):
        raise NACError(
            "expected --arch and either CHECKPOINTS and --train, to rank one run, or --runs and "
            "--data, to rank runs that leave one domain out each."
        )
    if args.runs and (args.val or args.test):
        raise NACError("--runs names the target domains itself: leave out --val and --test.")
    folder = Path(args.data) if args.data else Path(args.train[0]).resolve().parent
    dataset = args.space if args.space not in (None, "all") else folder.resolve().name
    space = rank.space_named(dataset)
    dataset = dataset if space == "all" else space
    if args.against:  # raises early if the paper has no numbers
        published.published_choice(dataset, args.arch)
    args.image_size = args.image_size or (224 if args.transform is None else None)
    transform = inputs.transform_of(args, [None]).transform
    options = {"layer": args.layer, "space": args.space or space, "out": out, "say": say}
    options |= inputs.loading(args)
    if args.runs is None:
        roles, classes = rank.domains_by_role(
            args.train, args.val, args.test, transform, trial=args.trial
        )
        load = inputs.network_loader(args, len(classes))
        ranking = rank.rank_checkpoints(args.checkpoints, **roles, load=load, **options)
        ranked = RankedRuns.of([RankedRun(" and ".join(roles["test"]), None, ranking)])
    else:
        domains = rank.all_domains(args.data, transform)
        load = inputs.network_loader(args, len(next(iter(domains.values())).classes))
        runs = rank.find_runs(args.runs, list(domains))
        ranked = rank.rank_runs(runs, domains, load=load, **options)
    if args.against and ranked.has_test:
        printed = published.printed_architecture(args.arch)
        rows, notes = published.against_choice(ranked.measured(), dataset, args.arch), ranked.notes
        if printed != args.arch:
            notes += (f"The published numbers are those of {printed}, not of {args.arch}.",)
        ranked = replace(ranked, notes=notes, paper=tuple(rows))
    return replace(ranked, dataset=dataset, arch=args.arch, command=typed_command())
