"""`nac-openood search`: find NAC's settings for a network, with one pass over it or none."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Mapping

from nac_openood.cli import inputs
from nac_openood.cli.options import OBJECTIVE_NAMES, STRATEGY_NAMES, command
from nac_openood.cli.output import add_figures, say, show
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from nac_openood.search import SearchResult
    from nac_openood.search.advise import Advice
    from nac_openood.search.recipe import ReadingSet

#: Options of the search itself. The others are for reading a network, and useless with --readings.
_OF_SEARCH = [
    *("out", "readings", "layers", "strategy", "objective", "space", "guard", "seed"),
    *("budget_points", "budget_seconds", "restarts", "top"),
]


@command(
    f"""
  --out DIR = nac_search
what to read:
  --readings DIR          use readings saved with --save-readings instead of a network
  --arch --checkpoint --transform --image-size --train --val --ood-val
  --id-data --data-root --skip-bad
  --layers LAYER...       layers to search (default: those of the shipped preset; for --train found
      by running the network)
  --n-samples N: count    training images to fit on (default: as in the preset)
  --held-out N: int       other training images, for the guard (default: 1000)
  --batch-size --workers --device
  --fast                  fold BatchNorm: faster, same results up to rounding
  --save-readings DIR     save the readings in this folder
how to search:
  --strategy {STRATEGY_NAMES} = layerwise   search strategy (default: %(default)s)
  --objective {OBJECTIVE_NAMES} = auroc   what to optimize on validation data: AUROC, FPR@95 as in
      OpenOOD, or their mean (default: %(default)s)
  --space NAME            what to try: 'paper', 'preset' (the lists shipped for this benchmark) or
      a YAML file with a sweep (default: preset for grid, else paper)
  --guard LIMIT: guard = auto   exclude settings that overfit, i.e. that separate held-out
      training from validation images with an AUROC further than this from 0.5: a number,
      'auto' (0.05, or more for small sets) or 'none' (default: %(default)s)
  --seed
  --budget-points N: count = 10000   points that 'random' tries (default: %(default)s)
  --budget-seconds S: positive   time limit of 'random' (default: none)
  --restarts N: count = 8   starting points of 'layerwise' (default: %(default)s)
  --top N: count = 10       best candidates to list in search.json (default: %(default)s)
""",
    inputs.FORMS,
)
def search_command(args: argparse.Namespace) -> int:
    r"""Find the best settings of every layer.

    The network runs once, to make readings; the search itself is arithmetic.

    Examples:
      nac-openood search --checkpoint best.ckpt --arch resnet18_32x32 --id-data cifar10 \
          --data-root data --save-readings readings/ --out nac_search/
          read the network once, search the paper's space and save the readings
      nac-openood search --readings readings/ --objective fpr95 --layers avgpool layer3
          search again, without network and images
      nac-openood search --readings readings/ --strategy grid
          exactly the authors' grid
      nac-openood search --checkpoint best.ckpt --arch vit_b_16 --id-data imagenet --ood-val none
          without OOD validation data: surrogates made from ID validation images (labelled as such)
      nac-openood search --arch net.py:make --checkpoint net.pt --transform transform.yml \
          --train birds/train --val birds/val
          your own network and images, surrogates as OOD validation data

    Writes nac.yml (the settings, for NACDetector, nac-openood compare and OpenOOD), search.json
    (all results) and landscape.png (needs matplotlib: pip install 'nac-openood[plot]') to --out.
    For exit codes see nac-openood --help.
    """
    from nac_openood.core.coverage import Coverage
    from nac_openood.detector.readings import fit_rule
    from nac_openood.files import locked, make_folder
    from nac_openood.report.figures import draw_landscape
    from nac_openood.search import recipe, run

    out = make_folder(args.out)  # before the slow part, so that its result can be written
    with locked(out):
        readings = _readings(args)
        space = args.space or ("preset" if args.strategy == "grid" else "paper")
        config = recipe.search_space(readings, space, args.layers)
        options = inputs.arguments(args, "strategy", "objective", "top", "seed")
        options["budget"] = run.Budget(args.budget_points, args.budget_seconds, args.restarts)
        result = recipe.search_settings(readings, config, guard=args.guard, **options)
        rule = fit_rule(Coverage(result.layers), readings.fit.batches())
        advice = recipe.advise_after_search(rule, readings)
        given = {**{name: getattr(args, name) for name in _OF_SEARCH}, "space": space}
        settings, record, picture = (out / n for n in ("nac.yml", "search.json", "landscape.png"))
        run.write_config(settings, result, readings.about)
        run.write_report(record, result, readings.about, given, advice)
        note = run.SURROGATE_LABEL if result.surrogate else None
        show(_result_text(result, readings.about, advice))
        add_figures(out, [settings, record], lambda: [draw_landscape(picture, result, note)])
    return 0


def _readings(args: argparse.Namespace) -> ReadingSet:
    """Load saved readings, or read a network."""
    from nac_openood.detector.config import NACConfig
    from nac_openood.detector.detector import NACDetector
    from nac_openood.search.recipe import HELD_OUT, ReadingSet, config_for, gather
    from nac_openood.sources.sets import benchmark_named

    if args.readings is not None:
        others = vars(args).keys() - {*_OF_SEARCH, "run", "command"}
        # compared by identity, because 0 == False
        used = sorted(n for n in others if not any(getattr(args, n) is v for v in (None, False)))
        if used:
            raise NACError(
                f"--readings needs no network: {', '.join(map(inputs.option, used))} cannot change "
                "readings that are already made. Leave them out, or leave out --readings."
            )
        return ReadingSet.load(args.readings)
    path = inputs.one_checkpoint(args)
    sets, _ = inputs.data_of(args, [path], needs_test=False)
    net = inputs.network_loader(args, sets.n_classes)(path)
    # shipped settings are for OpenOOD's data; for other data layers are found automatically
    own, layers = args.id_data is None, args.layers
    config = NACConfig({}) if own and not layers else config_for(net, sets.id_name, layers)
    listed = "" if own else benchmark_named(args.id_data).ood_val
    name, is_folder, _ = (args.ood_val or listed).partition("=")
    id_val, ood_val = f"val_{sets.id_name}", name if own or is_folder else f"val_{name}"
    roles = {"train": sets.train, id_val: sets.id_val, ood_val: sets.ood_val}
    about = {"arch": args.arch, "checkpoint": args.checkpoint, "id_data": sets.id_name}
    return gather(
        NACDetector(net, config.layer_choice, rule="nac", fast=args.fast),
        *(inputs.loader(args, name, found) for name, found in roles.items() if found is not None),
        n_samples=args.n_samples or config.n_samples or 1000,
        n_held_out=HELD_OUT if args.held_out is None else args.held_out,
        folder=args.save_readings,
        names={"id_val": id_val, "ood_val": ood_val},
        about=about,
        seed=args.seed,
        say=say,
    )


def _result_text(result: SearchResult, about: Mapping[str, Any], advice: Advice) -> str:
    """The best candidates, the chosen settings by layer, and the comparison."""
    from nac_openood.detector.display import text_rows
    from nac_openood.report.formatting import SHOWN
    from nac_openood.search import SURROGATE_LABEL

    against = about.get("ood_val", {}).get("name", "OOD validation")
    lines = [f"\n{result.evaluated:,} joint points in {result.seconds:.1f} s, against {against}"]
    if "accuracy" in about:
        lines.append(f"The network is right on {about['accuracy']:.1%} of ID validation.")
    if result.surrogate:
        lines.append(f"NOTE: {SURROGATE_LABEL}.")
    fpr, fpr_in = SHOWN["FPR@95"], SHOWN["FPR@95_IN"]
    rows: list[tuple[Any, ...]] = [
        ("", "", fpr.title, fpr_in.title, "", ""),
        ("", "AUROC", fpr.note, fpr_in.note, "guard", "layer bins/O*/alpha/weight state"),
    ]
    for rank, candidate in enumerate(result.ranking, start=1):
        names = ", ".join(
            f"{name} {c.n_bins}/{c.full_count}/{c.steepness:g}/{c.weight:g} {c.state}"
            for name, c in candidate.layers.items()
        )
        guard = "-" if candidate.guard is None else f"{candidate.guard:.1%}"
        metrics = (candidate.auroc, candidate.fpr95, candidate.fpr95_in)
        rows.append((rank, *(f"{value:.2%}" for value in metrics), guard, names))
    limit = "no settings" if result.guard is None else f"settings more than {result.guard:.1%} away"
    note = f"{limit} were excluded"
    if result.best.guard is None:
        note = "not measured, there are no held-out samples"
    lines += [
        f"\n{text_rows(rows)}",
        f"\n{fpr}: {fpr.meaning}",
        f"{fpr_in}: {fpr_in.meaning}",
        f"guard: AUROC of held-out training against ID validation, good near 50%; {note}\n",
    ]
    chosen: list[tuple[Any, ...]] = [("chosen", "bins", "O*", "alpha", "weight", "state")]
    for name in dict.fromkeys(point.layer for point in result.landscape):
        row: tuple[Any, ...] = ("", "", "", "", "left out")
        if name in result.layers:
            c = result.layers[name]
            row = (c.n_bins, c.full_count, f"{c.steepness:g}", f"{c.weight:g}", c.state)
        chosen.append((name, *row))
    return "\n".join([*lines, text_rows(chosen), f"\n{advice}\n"])
