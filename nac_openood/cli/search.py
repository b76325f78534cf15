"""`nac-openood search`: NAC's settings for a network, found with one pass over it or none."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from nac_openood.cli import options
from nac_openood.cli.output import drawn, say, show, show_written
from nac_openood.cli.search_readings import NEEDS_A_NETWORK, readings_for
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from nac_openood.search import SearchResult
    from nac_openood.search.advice import Advice
    from nac_openood.search.stored import ReadingSet

_EXAMPLES = f"""\
examples:
  nac-openood search --checkpoint best.ckpt --arch resnet18_32x32 --id-data cifar10 \\
      --data-root data --save-readings readings/ --out nac_search/
      read the network once, search the paper's space and save the readings
  nac-openood search --readings readings/ --objective fpr95 --layers avgpool layer3
      search again, without network and images
  nac-openood search --readings readings/ --strategy grid
      exactly the authors' grid
  nac-openood search --checkpoint best.ckpt --arch vit_b_16 --id-data imagenet --ood-val none
      without OOD validation data: surrogates made from ID validation images (labelled as such)
  nac-openood search --arch net.py:make --checkpoint net.pt --transform transform.yml \\
      --train birds/train --val birds/val
      your own network and images, surrogates as OOD validation data

Writes nac.yml (the settings, for NACDetector, nac-openood compare and OpenOOD), search.json (all
results) and landscape.png (needs matplotlib: pip install 'nac-openood[plot]') to --out.
For exit codes see nac-openood --help.

{options.FORMS}"""


def add(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_command(
        commands, "search", _search, epilog=_EXAMPLES,
        help="find the best NAC settings for a network",
        description="Find the best settings of every layer. The network runs once, to make "
        "readings; the search itself is arithmetic.",
    )  # fmt: skip
    _add_reading(parser)
    _add_searching(parser)
    options.add(parser, "--out", default="nac_search")


def _add_reading(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to read")
    add = group.add_argument
    add(
        "--readings",
        metavar="DIR",
        help="use readings saved with --save-readings instead of a network",
    )
    options.add(group, "--arch", "--checkpoint", "--transform")
    options.add(group, "--image-size", "--train", "--val", "--ood-val")
    options.add(group, "--id-data", "--data-root", "--skip-bad")
    add(
        "--layers",
        metavar="LAYER",
        nargs="+",
        help="layers to search (default: those of the shipped preset; for --train found by running "
        "the network)",
    )
    add(
        "--n-samples", type=int, metavar="N",
        help="training images to fit on (default: as in the preset)",
    )  # fmt: skip
    add(
        "--held-out", type=int, metavar="N",
        help="other training images, for the guard (default: 1000)",
    )  # fmt: skip
    options.add(group, "--batch-size", "--workers", "--device")
    add("--fast", action="store_true", help="fold BatchNorm: faster, same results up to rounding")
    add("--save-readings", metavar="DIR", help="save the readings in this folder")


def _add_searching(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how to search")
    add = group.add_argument
    add(
        "--strategy", choices=options.STRATEGY_NAMES, default="layerwise",
        help="search strategy (default: %(default)s)",
    )  # fmt: skip
    add(
        "--objective", choices=options.OBJECTIVE_NAMES, default="auroc",
        help="what to optimize on validation data: AUROC, FPR@95 as in OpenOOD, or their mean "
        "(default: %(default)s)",
    )  # fmt: skip
    add(
        "--space",
        metavar="NAME",
        help="what to try: 'paper', 'preset' (the lists shipped for this benchmark) or a YAML file "
        "with a sweep (default: preset for grid, else paper)",
    )
    add(
        "--guard",
        default="auto",
        metavar="LIMIT",
        help="exclude settings that overfit, i.e. that separate held-out training from validation "
        "images with an AUROC further than this from 0.5: a number, 'auto' (0.05, or more for "
        "small sets) or 'none' (default: %(default)s)",
    )
    options.add(group, "--seed")
    add(
        "--budget-points", type=int, metavar="N", help="points that 'random' tries (default: 10000)"
    )
    add("--budget-seconds", type=float, metavar="S", help="time limit of 'random' (default: none)")
    add("--restarts", type=int, metavar="N", help="starting points of 'layerwise' (default: 8)")
    add(
        "--top", type=int, default=10, metavar="N", help="candidates to show (default: %(default)s)"
    )


def _search(args: argparse.Namespace) -> int:
    from nac_openood.cli.search_table import show_result
    from nac_openood.files import locked, make_folder
    from nac_openood.search import search
    from nac_openood.search.choice import layers_and_lists

    guard, budget = _guard(args.guard), _budget(args)
    out = make_folder(args.out)  # before the long part, or its result could not be written
    with locked(out):
        readings = readings_for(args, say)
        space = args.space or ("preset" if args.strategy == "grid" else "paper")
        layers, lists = layers_and_lists(readings, space, args.layers)
        result = search(
            readings.fit, readings.id_val, readings.ood_val, held_out=readings.held_out,
            layers=layers, sweep=lists, strategy=args.strategy, objective=args.objective,
            guard=guard, surrogate=readings.surrogate, top=args.top, seed=args.seed, budget=budget,
        )  # fmt: skip
        advice = _advice(result, readings)
        show_result(result, readings.about, advice)
        _write(out, result, readings.about, _settings(args, space), advice)
    return 0


def _advice(result: SearchResult, readings: ReadingSet) -> Advice:
    from nac_openood.core.coverage import Coverage
    from nac_openood.detector.fitting import fitted_on
    from nac_openood.search.recipe import advise_after_search

    rule = fitted_on(Coverage(result.layers), readings.fit.batches())
    return advise_after_search(rule, readings)


def _write(
    out: Path, result: SearchResult, about: Any, settings: dict[str, Any], advice: Advice
) -> None:
    from nac_openood.report.landscape import draw_landscape
    from nac_openood.search import SURROGATE_LABEL
    from nac_openood.search.output import write_config, write_report

    write_config(out / "nac.yml", result, about)
    write_report(out / "search.json", result, about, settings, advice)
    note = SURROGATE_LABEL if result.surrogate else None
    path = out / "landscape.png"
    picture = drawn(path.name, lambda: [draw_landscape(path, result, note)])
    show("")
    show_written(out, [out / "nac.yml", out / "search.json", *picture])


def _settings(args: argparse.Namespace, space: str) -> dict[str, Any]:
    """What was asked for; options of reading lie beside the readings."""
    asked = {k: v for k, v in vars(args).items() if k != "run" and k not in NEEDS_A_NETWORK}
    return {**asked, "space": space}


def _guard(text: str) -> Union[float, str, None]:
    if text in ("auto", "none"):
        return None if text == "none" else text
    try:
        return float(text)
    except ValueError:
        raise NACError(f"--guard: expected a number, 'auto' or 'none', got '{text}'.") from None


def _budget(args: argparse.Namespace) -> Any:
    from nac_openood.search import Budget

    limits = {
        "points": args.budget_points, "seconds": args.budget_seconds, "restarts": args.restarts
    }  # fmt: skip
    return Budget(**{name: limit for name, limit in limits.items() if limit is not None})
