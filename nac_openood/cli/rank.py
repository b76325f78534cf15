"""`nac-openood rank`: which checkpoint of a training run will generalize best."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from nac_openood.cli import options
from nac_openood.cli.output import interrupted, open_page, publish, say
from nac_openood.cli.rank_work import complete, many_runs, one_run, refuse

if TYPE_CHECKING:
    from nac_openood.evaluation.leave_one_out import RankedRuns

_EXAMPLES = """\
examples:
  nac-openood rank run/*.pt --arch resnet50 --space pacs \\
      --train PACS/cartoon PACS/photo PACS/sketch --test PACS/art_painting
      rank the checkpoints of a run; 20 % of each training domain is held out for validation
  nac-openood rank run/ --arch resnet50 --train train/photo train/sketch \\
      --val val/photo val/sketch
      all checkpoints in a folder, validation data of your own, no target domain
  nac-openood rank --runs study --data PACS --arch resnet18 --against paper
      leave one domain out: runs study/<target domain>/trial_<number>, the paper's table
  nac-openood rank --demo
      train on images that come with libraries, and rank the checkpoints

A domain is a folder with a folder of images for each class, as in DomainBed: PACS/photo/dog/1.jpg.
Checkpoints are state dicts, or DomainBed's own files (DomainBed need not be installed).
The settings of NAC-ME are chosen by validation accuracy. Target domains are used only to measure
how well that worked. RC is Spearman's rank correlation; equal values share their mean rank.

Each checkpoint is read once and kept: after an interruption, run the same command again to
continue. Writes results.csv, results.md, results.json and report.html into --out.
For exit codes see nac-openood --help.
"""


def add(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_command(
        commands, "rank", _rank, epilog=_EXAMPLES,
        help="rank the checkpoints of a run by NAC-ME, without out-of-distribution data",
        description="Rank the checkpoints of a training run by their neuron activation coverage "
        "on training data, which in the paper correlates with accuracy on unseen domains.",
    )  # fmt: skip
    _add_data(parser)
    group = parser.add_argument_group("how to rank")
    add = group.add_argument
    add(
        "--layer", default="auto", metavar="NAME",
        help="layer to read (default: avgpool in ResNets, norm2 of the last block in ViTs)",
    )  # fmt: skip
    add(
        "--space", metavar="NAME",
        help="settings to choose from: vlcs, pacs, officehome, terraincognita (the paper's) or all "
        "(default: by the name of the data folder)",
    )  # fmt: skip
    options.add(group, "--out", default="rank")
    options.add(group, "--against", "--open", "--batch-size", "--workers", "--device")
    group = parser.add_argument_group("demo")
    group.add_argument(
        "--demo", action="store_true",
        help="train small networks on images that come with libraries, and rank their checkpoints",
    )  # fmt: skip
    options.add(group, "--seed")


def _add_data(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("checkpoints and images")
    add = group.add_argument
    add(
        "checkpoints", nargs="*", metavar="CHECKPOINTS",
        help="files, or folders of files, of one training run",
    )  # fmt: skip
    add(
        "--arch", metavar="NET",
        help="resnet18, resnet50, another torchvision model, timm:NAME, hf:NAME-OR-FOLDER, or your "
        "code path/to/file.py:factory, which is run with the number of classes",
    )  # fmt: skip
    add("--train", nargs="+", metavar="DIR", help="folders of the source domains")
    add(
        "--val", nargs="+", metavar="DIR",
        help="folders of held-out data of the source domains (default: 20 %% of --train)",
    )  # fmt: skip
    add("--test", nargs="+", metavar="DIR", help="folders of target domains")
    add(
        "--trial", type=int, default=0, metavar="N",
        help="number of the trial, which seeds the split of --train (default: %(default)s)",
    )  # fmt: skip
    add("--runs", metavar="DIR", help="folder of runs: DIR/<target domain>/trial_<number>")
    add("--data", metavar="DIR", help="with --runs: folder of all domains, e.g. PACS")
    add(
        "--image-size", type=int, metavar="N",
        help="images are resized to N x N and normalized as for ImageNet (default: 224)",
    )  # fmt: skip
    add(
        "--transform", metavar="T",
        help="in place of --image-size: auto (the network's own configuration), a YAML file, or "
        "your code path/to/file.py:name",
    )  # fmt: skip


def _rank(args: argparse.Namespace) -> int:
    out = Path(args.out)
    if args.demo:
        refuse(args, "--demo", ("checkpoints", "arch", "train", "val", "test", "runs", "data"))
        from nac_openood.demo.ranking import run_rank_demo

        return _publish(
            run_rank_demo(out, seed=args.seed, command=options.typed_command(), say=say), out, args
        )
    work = one_run if args.runs is None else many_runs
    try:
        ranked = work(args, out)
    except KeyboardInterrupt:
        return interrupted(out)
    return _publish(complete(ranked, args), out, args)


def _publish(ranked: RankedRuns, out: Path, args: argparse.Namespace) -> int:
    from nac_openood.report.ranked import write

    page = publish(
        out,
        write.ranked_summary(ranked),
        lambda: [ranked.save(out), *write.write_ranked_tables(ranked, out)],
        "report.html",
        lambda: [write.write_ranked_page(ranked, out)],
    )
    open_page(page, args.open)
    return 0
