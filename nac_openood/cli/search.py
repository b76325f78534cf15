"""`nac-openood search`: NAC's settings for a network, found with one pass over it or none."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Optional, Union

from nac_openood.cli.search_readings import NEEDS_A_NETWORK, readings_for
from nac_openood.cli.search_table import show
from nac_openood.errors import NACError

_EXAMPLES = """\
examples:
  nac-openood search --checkpoint best.ckpt --arch resnet18_32x32 --id-data cifar10 \\
      --data-root data --save-readings readings/ --out nac_search/
      read the network once, search the paper's space, keep the readings
  nac-openood search --readings readings/ --objective fpr95 --layers avgpool layer3
      search again, with neither network nor images
  nac-openood search --readings readings/ --strategy grid
      the authors' own grid, exactly
  nac-openood search --checkpoint best.ckpt --arch vit_b_16 --id-data imagenet --ood-val none
      no OOD validation data: stand-ins made of ID validation images (labelled as such)

writes nac.yml (settings for NACDetector, nac-openood and OpenOOD), search.json (everything that
was found) and landscape.png (needs matplotlib: pip install 'nac-openood[plot]') into --out.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "search",
        help="find NAC's settings for a network",
        description="Find the best settings of every layer: one pass over the network makes "
        "readings, the search itself is arithmetic.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_reading(parser)
    _add_searching(parser)
    parser.add_argument("--out", default="nac_search", help="folder to write to (./%(default)s)")
    parser.set_defaults(run=_search)


def _add_reading(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to read")
    add = group.add_argument
    add("--readings", metavar="DIR", help="readings made by --save-readings; needs no network")
    add("--checkpoint", metavar="FILE", help="weights: a state dict, or {'state_dict': ...}")
    add("--arch", metavar="NAME", help="resnet18_32x32, a torchvision model, or timm:NAME")
    add("--id-data", metavar="NAME", help="cifar10, cifar100, imagenet200 or imagenet")
    add("--data-root", metavar="DIR", help="with benchmark_imglist/ and images (./data)")
    add(
        "--ood-val",
        metavar="NAME",
        help="list of OOD validation images without 'val_' (tin for CIFAR, openimage_o for "
        "ImageNet); 'none' makes surrogates of ID validation images",
    )
    add("--layers", metavar="LAYER", nargs="+", help="(those of the shipped preset)")
    add("--n-samples", type=int, help="training images to fit on (the preset's number)")
    add("--held-out", type=int, metavar="N", help="other training images, for the guard (1000)")
    add("--batch-size", type=int, help="of images (100)")
    add("--workers", type=int, help="processes that load images (0)")
    add("--device", help="e.g. cuda (where there is one, else cpu)")
    add("--fast", action="store_true", help="fold BatchNorm: faster, equal up to rounding")
    add("--save-readings", metavar="DIR", help="keep the readings there, written as they come")


def _add_searching(parser: argparse.ArgumentParser) -> None:
    from nac_openood.search import OBJECTIVES, STRATEGIES

    group = parser.add_argument_group("how to search")
    add = group.add_argument
    add("--strategy", choices=list(STRATEGIES), default="layerwise", help="(%(default)s)")
    add("--objective", choices=list(OBJECTIVES), default="auroc", help="(%(default)s)")
    add(
        "--space",
        help="'paper', 'preset' (the lists shipped for this benchmark) or a YAML file with a "
        "sweep (paper; preset for grid)",
    )
    add(
        "--guard",
        default="auto",
        help="exclude settings that tell held-out training from validation images by an AUROC "
        "further than this from 0.5: a number, 'auto' (0.05) or 'none'",
    )
    add("--seed", type=int, default=0, help="of random choices (%(default)s)")
    add("--budget-points", type=int, metavar="N", help="joint points of 'random' (10000)")
    add("--budget-seconds", type=float, metavar="S", help="'random' stops here")
    add("--restarts", type=int, metavar="N", help="starting points of 'layerwise' (8)")
    add("--top", type=int, default=10, help="candidates to rank (%(default)s)")


def _search(args: argparse.Namespace) -> int:
    from nac_openood.core.files import make_folder
    from nac_openood.search import search
    from nac_openood.search.choice import layers_and_lists

    guard = _guard(args.guard)
    budget = _budget(args)
    out = make_folder(args.out)  # before the long part, or its result could not be written
    readings = readings_for(args, say=lambda text: print(f"- {text}", flush=True))
    space = args.space or ("preset" if args.strategy == "grid" else "paper")
    layers, lists = layers_and_lists(readings, space, args.layers)
    result = search(
        readings.fit, readings.id_val, readings.ood_val, held_out=readings.held_out,
        layers=layers, sweep=lists, strategy=args.strategy, objective=args.objective,
        guard=guard, top=args.top, seed=args.seed, budget=budget,
    )  # fmt: skip
    show(result, readings.about)
    _write(out, result, readings.about, _settings(args, space))
    return 0


def _write(out: Path, result: Any, about: Any, settings: dict[str, Any]) -> None:
    from nac_openood.report.landscape import draw_landscape
    from nac_openood.search import SURROGATE_LABEL
    from nac_openood.search.output import is_surrogate, write_config, write_report

    write_config(out / "nac.yml", result, about)
    write_report(out / "search.json", result, about, settings)
    written = ["nac.yml", "search.json"]
    try:
        note = SURROGATE_LABEL if is_surrogate(about) else None
        draw_landscape(out / "landscape.png", result, note)
        written.append("landscape.png")
    except NACError as error:  # the picture is the only thing that is lost
        print(f"nac-openood: no landscape.png: {error}", file=sys.stderr)
    print(f"\nWritten to {out}: {', '.join(written)}")


def _settings(args: argparse.Namespace, space: str) -> dict[str, Any]:
    """What was asked for; options of reading lie beside the readings."""
    given = {k: v for k, v in vars(args).items() if k != "run" and k not in NEEDS_A_NETWORK}
    return {**given, "space": space}


def _guard(text: str) -> Union[float, str, None]:
    if text in ("auto", "none"):
        return None if text == "none" else text
    try:
        return float(text)
    except ValueError:
        raise NACError(f"--guard: expected a number, 'auto' or 'none', got '{text}'.") from None


def _budget(args: argparse.Namespace) -> Any:
    from nac_openood.search import Budget

    limits: dict[str, Optional[float]] = {
        "points": args.budget_points,
        "seconds": args.budget_seconds,
        "restarts": args.restarts,
    }
    return Budget(**{k: v for k, v in limits.items() if v is not None})  # type: ignore[arg-type]
