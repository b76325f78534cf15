"""`nac-openood fit`: a network and its training images become one detector file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, Optional

from nac_openood.cli import given, given_data, options
from nac_openood.cli.output import complain, show
from nac_openood.cli.sharding import add_shard
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from nac_openood.detector.checked_fit import FitReport
    from nac_openood.detector.detector import NACDetector

_EXAMPLES = f"""\
examples:
  nac-openood fit --arch net.py:make --checkpoint net.pt --transform transform.yml \\
      --train birds/train --val birds/val --out birds.nac
      your own network and images, with a folder per class
  nac-openood fit --arch hf:my-vit --train birds/train --test birds/test --out birds.nac
      a Hugging Face network with its own image processor; 20 % of --train is held out to
      calibrate on, and the false-alarm rate is measured on --test
  nac-openood fit --arch hf:my-bert --train train.csv --val val.csv --out topics.nac
      a Hugging Face network of texts, with lists that have the columns text and label
  nac-openood score --detector birds.nac --arch net.py:make --checkpoint net.pt new_photos/
      judge new images with the detector

The file holds what was counted, the calibration, the names of the classes, the transform and a
fingerprint of the network; not the network itself. Warnings about a suspicious fit are printed to
stderr.
For exit codes see nac-openood --help.

{options.FORMS}"""
#: Fitting samples, unless there are many classes.
_SAMPLES, _PER_CLASS = 1000, 20


def add(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_command(
        commands, "fit", _fit, epilog=_EXAMPLES,
        help="fit a detector on your network and images, and write it to a file",
        description="Fit a detector on a network and its training images, calibrate it on "
        "validation images and write it to one file.",
    )  # fmt: skip
    group = parser.add_argument_group("network and images")
    options.add(group, "--arch", "--checkpoint", "--transform")
    options.add(group, "--image-size", "--train", "--val")
    options.add(group, "--test", help="other ID images, to measure the false-alarm rate on")
    options.add(group, "--id-data", "--data-root", "--skip-bad")
    group = parser.add_argument_group("detector")
    add = group.add_argument
    add(
        "--rule",
        type=options.rule_name,
        metavar="RULE",
        default="nac_plus",
        help="nac_plus needs no settings and only forward passes; nac is the paper's; or a rule "
        "of your own (default: %(default)s)",
    )
    add(
        "--layers", nargs="+", metavar="LAYER",
        help="layers to read (default: found by running the network)",
    )  # fmt: skip
    add(
        "--n-samples", type=int, metavar="N",
        help=f"training images to fit on, equally many of each class (default: {_SAMPLES}, or "
        f"{_PER_CLASS} per class if that is more)",
    )  # fmt: skip
    options.add(group, "--alpha")
    group = parser.add_argument_group("how to run")
    options.add(group, "--out", default="detector.nac", metavar="FILE", help="the detector's file "
                "(default: ./%(default)s)")  # fmt: skip
    options.add(group, "--batch-size", "--workers", "--device", "--seed")
    add_shard(group)


def _fit(args: argparse.Namespace) -> int:
    from nac_openood.detector.checked_fit import fit_checked
    from nac_openood.detector.detector import NACDetector
    from nac_openood.files import check_target
    from nac_openood.sources.fitted import note_origin
    from nac_openood.sources.own_sets import classes_of

    out = Path(args.out)
    check_target(out)  # before the long part, or its result could not be written
    args.ood_val = "none"
    path = given.one_checkpoint(args)
    data = given_data.data_of(args, [path], needs_test=False)
    net = given.loader_of(args, data.sets.n_classes)(path)
    roles = {"train": data.sets.train, "val": data.sets.id_val, "test": data.sets.test}
    loaders: dict[str, Any] = {
        role: None if found is None else given_data.loader(args, role, found)
        for role, found in roles.items()
    }
    detector = NACDetector(net, args.layers or "auto", rule=args.rule)
    n_samples = _samples(args, loaders["train"], data.sets.n_classes)
    note_origin(
        detector, arch=args.arch, n_classes=data.sets.n_classes,
        classes=classes_of(data.sets.train), transform=data.transform,
    )  # fmt: skip
    if args.shard is not None:
        return _fit_shard(args, detector, loaders, n_samples, data.sets.n_classes)
    report = fit_checked(
        detector, loaders["train"], loaders["val"], loaders["test"],
        n_samples=n_samples, n_classes=data.sets.n_classes, alpha=args.alpha,
    )  # fmt: skip
    detector.save(out)
    how = "" if args.layers else " (found by running the network)"
    show_fit(report, args.arch, detector.rule, f"{', '.join(detector.layers)}{how}", out)
    _tell_if_shared(data.sets.train, data.sets.id_val)
    return 0


def _fit_shard(
    args: argparse.Namespace,
    detector: NACDetector,
    loaders: Mapping[str, Any],
    n_samples: Optional[int],
    n_classes: int,
) -> int:
    from nac_openood.detector.shards import ShardNotes, write_shard
    from nac_openood.detector.verdicts import checked_alpha

    sizes = {role: len(loader.dataset) for role, loader in loaders.items() if loader is not None}
    sizes["train"] = n_samples or sizes["train"]
    batch_size = loaders["val"].batch_size
    number, of = args.shard
    notes = ShardNotes(number, of, batch_size, checked_alpha(args.alpha), n_classes, sizes)
    write_shard(args.out, notes, detector, **loaders, n_samples=n_samples)
    show(f"Written to {args.out}: shard {number} of {of}")
    return 0


def _tell_if_shared(train: Any, val: Any) -> None:
    """Networks remember training data, so p-values that rest on it are too low for new data."""
    from nac_openood.sources.images import common_files

    shared = common_files(train, val)
    if shared:
        complain(
            f"warning: {shared} validation images are training images, too. New images will look "
            "unusual more often than they should: pass others as --val."
        )


def _samples(args: argparse.Namespace, train: Any, n_classes: int) -> Optional[int]:
    """How many samples to fit on; None if that is more than there are."""
    wanted = options.number(args, "n_samples", max(_SAMPLES, _PER_CLASS * n_classes), 1)
    there = len(train.dataset)
    if args.n_samples is not None and wanted > there:
        raise NACError(f"`n_samples={wanted}`: there are only {there} training samples.")
    return None if wanted >= there else wanted


def show_fit(report: FitReport, arch: str, rule: str, layers: str, out: Path) -> None:
    """Tell about a fit, and where it was written to."""
    alarms = report.false_alarms
    measured = "not measured: give --test" if alarms is None else str(alarms)
    lines = {
        "network": f"{arch}, {report.n_classes} classes",
        "rule": rule,
        "layers": layers,
        "fitted on": f"{report.n_fitted} training samples",
        "accuracy": f"{report.accuracy:.1%} of {report.n_val} validation samples",
        "threshold": f"out if score <= {report.threshold:.6g}, that is p <= {report.alpha:g}",
        "false alarms": measured,
    }
    for name, text in lines.items():
        show(f"{name:<13} {text}")
    for warning in report.warnings:
        complain(f"warning: {warning}")
    show(f"Written to {out} ({out.stat().st_size / 1e3:.0f} kB)")
