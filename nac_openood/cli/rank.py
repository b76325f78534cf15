"""`nac-openood rank`: which checkpoint of a training run will generalize best."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Sequence

from nac_openood.cli import inputs
from nac_openood.cli.options import command
from nac_openood.cli.output import interrupted, open_page, publish, say, typed_command
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from nac_openood.evaluation.ranking import RankedRuns


@command(
    """
checkpoints and images:
  checkpoints [CHECKPOINTS...]   files, or folders of files, of one training run
  --arch NET              resnet18, resnet50, another torchvision model, timm:NAME,
      hf:NAME-OR-FOLDER, or your code path/to/file.py:factory
  --train DIR...          folders of the source domains
  --val DIR...            folders of held-out data of the source domains (default: 20 %% of --train)
  --test DIR...           folders of target domains
  --trial N: int = 0      trial number, which seeds the split of --train (default: %(default)s)
  --runs DIR              folder of runs: DIR/<target domain>/trial_<number>
  --data DIR              with --runs: folder of all domains, e.g. PACS
  --image-size N: int     images are resized to N x N and normalized as for ImageNet (default: 224)
  --transform T           in place of --image-size: auto (the network's own configuration), a YAML
      file, or your code path/to/file.py:name
how to rank:
  --layer NAME = auto     layer to read (default: avgpool in ResNets, the last norm2 in ViTs)
  --space NAME            settings to choose from: vlcs, pacs, officehome, terraincognita (the
      paper's) or all (default: by the name of the data folder)
  --out DIR = rank
  --against --open --batch-size --workers --device
demo:
  --demo                  train on images that come with libraries, and rank the checkpoints
  --seed
"""
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
    from nac_openood.report.checkpoints import (
        ranked_summary,
        write_ranked_page,
        write_ranked_tables,
    )

    out = Path(args.out)
    if args.demo:
        other = ("checkpoints", "arch", "train", "val", "test", "runs", "data")
        _check(args, "--demo", refuses=other)
        from nac_openood.demo.ranking import run_rank_demo

        ranked = run_rank_demo(out, seed=args.seed, command=typed_command(), say=say)
    else:
        try:
            ranked = _one_run(args, out) if args.runs is None else _many_runs(args, out)
        except KeyboardInterrupt:
            return interrupted(out)
        ranked = _with_origin(ranked, args)
    page = publish(
        out,
        f"\n{ranked_summary(ranked)}\n",
        lambda: [ranked.save(out), *write_ranked_tables(ranked, out)],
        "report.html",
        lambda: [write_ranked_page(ranked, out)],
    )
    open_page(page, args.open)
    return 0


def _one_run(args: argparse.Namespace, out: Path) -> RankedRuns:
    """Rank the checkpoints of one run."""
    from nac_openood.evaluation.rank import domains_by_role, rank_checkpoints
    from nac_openood.evaluation.ranking import RankedRun, RankedRuns
    from nac_openood.sources.checkpoints import run_checkpoints

    _check(args, "CHECKPOINTS", ("checkpoints", "arch", "train"), ("data",))
    found = run_checkpoints(args.checkpoints)
    roles, classes = domains_by_role(
        args.train, args.val, args.test, _transform(args), trial=args.trial
    )
    ranking = rank_checkpoints(
        {each.name: each.path for each in found}, **roles, **_options(args, classes), out=out
    )
    return RankedRuns.of([RankedRun(" and ".join(roles["test"]), None, ranking)])


def _many_runs(args: argparse.Namespace, out: Path) -> RankedRuns:
    """Rank the runs of a folder, each without its target domain."""
    from nac_openood.evaluation.rank import all_domains, find_runs, rank_runs

    _check(args, "--runs", ("data", "arch"), ("checkpoints", "train", "val", "test"))
    domains = all_domains(args.data, _transform(args))
    runs = find_runs(args.runs, list(domains))
    classes = next(iter(domains.values())).classes
    return rank_runs(runs, domains, out=out, **_options(args, classes))


def _transform(args: argparse.Namespace) -> Any:
    """The transform of images, by default that of DomainBed."""
    from nac_openood.sources.readers import domainbed_transform

    default = args.transform is None and args.image_size is None
    return domainbed_transform() if default else inputs.transform_of(args, [None]).transform


def _options(args: argparse.Namespace, classes: Sequence[str]) -> dict[str, Any]:
    """Arguments that both ways of ranking share."""
    from nac_openood.benchmark.paper.published import published_choice
    from nac_openood.evaluation.rank import space_named

    if args.against:  # raises early if the paper has no numbers
        published_choice(_dataset(args), args.arch)
    space = args.space or space_named(_dataset(args))
    load = inputs.network_loader(args, len(classes))
    return {"load": load, "layer": args.layer, "space": space, "say": say, **inputs.loading(args)}


def _dataset(args: argparse.Namespace) -> str:
    """The name of the dataset: --space, or the folder of its domains."""
    from nac_openood.evaluation.rank import space_named

    folder = Path(args.data) if args.data else Path(args.train[0]).resolve().parent
    name = args.space if args.space not in (None, "all") else folder.resolve().name
    return name if space_named(name) == "all" else space_named(name)


def _with_origin(ranked: RankedRuns, args: argparse.Namespace) -> RankedRuns:
    """Add what a reader needs to judge and repeat the numbers."""
    from dataclasses import asdict, replace

    from nac_openood.benchmark.paper.published import against_choice, printed_architecture

    dataset, notes, paper = _dataset(args), ranked.notes, []
    if args.against and ranked.has_test:
        paper = [asdict(row) for row in against_choice(ranked.measured(), dataset, args.arch)]
        printed = printed_architecture(args.arch)
        if printed != args.arch:
            notes = (*notes, f"The published numbers are those of {printed}, not of {args.arch}.")
    origin = {"dataset": dataset, "arch": args.arch, "command": typed_command()}
    return replace(ranked, notes=notes, paper=tuple(paper), **origin)


def _check(
    args: argparse.Namespace, kind: str, needs: Sequence[str] = (), refuses: Sequence[str] = ()
) -> None:
    """Raise if an option is missing for this kind of ranking, or cannot be combined with it."""
    names = {name: inputs.option(name) for name in (*needs, *refuses)}
    names["checkpoints"] = "CHECKPOINTS"
    missing = ", ".join(names[name] for name in needs if not getattr(args, name))
    if missing:
        raise NACError(
            f"{missing} not given. Pass CHECKPOINTS, --arch and --train to rank one run, or "
            "--runs, --data and --arch for runs that leave one domain out."
        )
    refused = ", ".join(names[name] for name in refuses if getattr(args, name))
    if refused:
        raise NACError(f"{kind} cannot be combined with {refused}: leave that out.")
