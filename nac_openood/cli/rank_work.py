"""What `nac-openood rank` does with its options."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Sequence

from nac_openood.cli.given import loader_of, transform_of
from nac_openood.cli.options import loading, option, typed_command
from nac_openood.cli.output import say
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from nac_openood.evaluation.leave_one_out import RankedRuns


def one_run(args: argparse.Namespace, out: Path) -> RankedRuns:
    """Rank the checkpoints of one run."""
    from nac_openood.evaluation.folders import domains_by_role
    from nac_openood.evaluation.leave_one_out import RankedRun, RankedRuns, with_notes
    from nac_openood.evaluation.rank import rank_checkpoints
    from nac_openood.sources.checkpoints import run_checkpoints

    require(args, ("checkpoints", "arch", "train"))
    refuse(args, "CHECKPOINTS", ("data",))
    found = run_checkpoints(args.checkpoints)
    roles, classes = domains_by_role(
        args.train, args.val, args.test, _transform(args), trial=args.trial
    )
    ranking = rank_checkpoints(
        {each.name: each.path for each in found},
        **roles,
        **_options(args, classes),
        out=out,
    )
    target = " and ".join(roles["test"])
    return with_notes(RankedRuns((RankedRun(target, None, ranking),)))


def many_runs(args: argparse.Namespace, out: Path) -> RankedRuns:
    """Rank the runs of a folder, each without its target domain."""
    from nac_openood.evaluation.folders import all_domains
    from nac_openood.evaluation.leave_one_out import rank_runs
    from nac_openood.evaluation.runs import find_runs

    require(args, ("data", "arch"))
    refuse(args, "--runs", ("checkpoints", "train", "val", "test"))
    domains = all_domains(args.data, _transform(args))
    runs = find_runs(args.runs, list(domains))
    classes = next(iter(domains.values())).classes
    return rank_runs(runs, domains, out=out, **_options(args, classes))


def _transform(args: argparse.Namespace) -> Any:
    """How images become tensors: as DomainBed does it, unless told otherwise."""
    from nac_openood.sources.domains import domainbed_transform

    if args.transform is None and args.image_size is None:
        return domainbed_transform()
    return transform_of(args, [None]).transform


def _options(args: argparse.Namespace, classes: Sequence[str]) -> dict[str, Any]:
    """Keywords that both ways of ranking share."""
    from nac_openood.evaluation.space import space_named

    if args.against:  # refused early where the paper has no numbers
        from nac_openood.benchmark.paper.generalization import published_choice

        published_choice(_dataset(args), args.arch)
    return {
        "load": loader_of(args, len(classes)),
        "layer": args.layer,
        "space": args.space or space_named(_dataset(args)),
        "say": say,
        **loading(args),
    }


def _dataset(args: argparse.Namespace) -> str:
    """The name of the dataset: that of its settings, or of the folder of its domains."""
    from nac_openood.evaluation.space import space_named

    folder = Path(args.data) if args.data else Path(args.train[0]).resolve().parent
    name = args.space if args.space not in (None, "all") else folder.resolve().name
    return name if space_named(name) == "all" else space_named(name)


def complete(ranked: RankedRuns, args: argparse.Namespace) -> RankedRuns:
    """Add what a reader needs to judge and repeat the numbers."""
    from dataclasses import asdict, replace

    from nac_openood.benchmark.paper.generalization import against_choice, printed_architecture
    from nac_openood.evaluation.leave_one_out import with_origin

    dataset, notes, paper = _dataset(args), ranked.notes, []
    if args.against and ranked.has_test:
        paper = [asdict(row) for row in against_choice(ranked.measured(), dataset, args.arch)]
        printed = printed_architecture(args.arch)
        if printed != args.arch:
            notes = (*notes, f"The published numbers are those of {printed}, not of {args.arch}.")
    compared = replace(ranked, notes=notes, paper=tuple(paper))
    return with_origin(compared, dataset=dataset, arch=args.arch, command=typed_command())


def require(args: argparse.Namespace, names: Sequence[str]) -> None:
    """Raise if an option that is needed was not given."""
    lacking = [_spelled(name) for name in names if not getattr(args, name)]
    if lacking:
        raise NACError(
            f"{', '.join(lacking)} not given. Give CHECKPOINTS, --arch and --train to rank one "
            "run, or --runs, --data and --arch for runs that leave one domain out."
        )


def refuse(args: argparse.Namespace, kind: str, names: Sequence[str]) -> None:
    """Raise if an option was given that makes no sense here."""
    given = [_spelled(name) for name in names if getattr(args, name)]
    if given:
        raise NACError(f"{kind} does not go together with {', '.join(given)}: leave that out.")


def _spelled(name: str) -> str:
    return "CHECKPOINTS" if name == "checkpoints" else option(name)
