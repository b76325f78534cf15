"""`nac-openood fit`: a network and its training images become one detector file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nac_openood.cli import inputs
from nac_openood.cli.options import command
from nac_openood.cli.output import print_error, show
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from nac_openood.detector.checked_fit import FitReport

#: Fitting samples, unless there are many classes.
_SAMPLES, _PER_CLASS = 1000, 20


@command(
    f"""
network and images:
  --arch --checkpoint --transform --image-size --train --val
  --test DATA             other ID images, to measure the false-alarm rate on
  --id-data --data-root --skip-bad
detector:
  --rule NAME: rule = nac_plus   nac_plus needs no settings and only forward passes; nac is the
      paper's; or a rule of your own (default: %(default)s)
  --layers LAYER...       layers to read (default: found by running the network)
  --n-samples N: int      training images to fit on, equally many of each class (default:
      {_SAMPLES}, or {_PER_CLASS} per class if that is more)
  --alpha
how to run:
  --out FILE = detector.nac   the detector's file (default: ./%(default)s)
  --batch-size --workers --device --seed --shard
""",
    inputs.FORMS,
)
def fit_command(args: argparse.Namespace) -> int:
    r"""Fit a detector on a network and its training images, and write it to one file.

    The detector is calibrated on validation images.

    Examples:
      nac-openood fit --arch net.py:make --checkpoint net.pt --transform transform.yml \
          --train birds/train --val birds/val --out birds.nac
          your own network and images, with a folder per class
      nac-openood fit --arch hf:my-vit --train birds/train --test birds/test --out birds.nac
          a Hugging Face network with its own image processor; 20 % of --train is held out to
          calibrate on, and the false-alarm rate is measured on --test
      nac-openood fit --arch hf:my-bert --train train.csv --val val.csv --out topics.nac
          a Hugging Face network of texts, with lists that have the columns text and label
      nac-openood score --detector birds.nac --arch net.py:make --checkpoint net.pt new_photos/
          judge new images with the detector

    The file holds the counts, the calibration, the names of the classes, the transform and a
    fingerprint of the network; not the network itself. Warnings about a suspicious fit are printed
    to stderr.
    For exit codes see nac-openood --help.
    """
    from nac_openood.detector.checked_fit import fit_checked
    from nac_openood.detector.detector import NACDetector
    from nac_openood.files import check_target
    from nac_openood.sources.fitted import note_origin
    from nac_openood.sources.samples import common_files
    from nac_openood.sources.sets import classes_of

    out = Path(args.out)
    check_target(out)  # before the slow part, so that its result can be written
    args.ood_val = "none"
    path = inputs.one_checkpoint(args)
    data = inputs.data_of(args, [path], needs_test=False)
    sets = data.sets
    net = inputs.network_loader(args, sets.n_classes)(path)
    loaders: dict[str, Any] = {
        role: None if found is None else inputs.loader(args, role, found)
        for role, found in (("train", sets.train), ("val", sets.id_val), ("test", sets.test))
    }
    detector = NACDetector(net, args.layers or "auto", rule=args.rule)
    wanted = inputs.number(args, "n_samples", max(_SAMPLES, _PER_CLASS * sets.n_classes), 1)
    n_train = len(loaders["train"].dataset)
    if args.n_samples is not None and wanted > n_train:
        raise NACError(f"`n_samples={wanted}`: there are only {n_train} training samples.")
    n_samples = None if wanted >= n_train else wanted
    note_origin(
        detector,
        arch=args.arch,
        n_classes=sets.n_classes,
        classes=classes_of(sets.train),
        transform=data.transform,
    )
    if args.shard is not None:
        return _fit_shard(args, detector, loaders, n_samples, sets.n_classes)
    found = fit_checked(
        detector, *loaders.values(), n_samples=n_samples, n_classes=sets.n_classes, alpha=args.alpha
    )
    detector.save(out)
    how = "" if args.layers else " (found by running the network)"
    show_fit(found, args.arch, detector.rule, f"{', '.join(detector.layers)}{how}", out)
    shared = common_files(sets.train, sets.id_val)
    if shared:  # networks memorize training data, so p-values of new data would be too low
        print_error(
            f"warning: {shared} validation images are training images, too. New images will look "
            "unusual more often than they should: pass others as --val."
        )
    return 0


def _fit_shard(
    args: argparse.Namespace, detector: Any, loaders: dict[str, Any], n_samples: Any, n_classes: int
) -> int:
    from nac_openood.detector.checked_fit import ShardNotes, write_shard
    from nac_openood.detector.outcomes import checked_alpha

    sizes = {role: len(loader.dataset) for role, loader in loaders.items() if loader is not None}
    sizes["train"] = n_samples or sizes["train"]
    number, of = args.shard
    batch_size, alpha = loaders["val"].batch_size, checked_alpha(args.alpha)
    notes = ShardNotes(number, of, batch_size, alpha, n_classes, sizes)
    write_shard(args.out, notes, detector, **loaders, n_samples=n_samples)
    show(f"Written to {args.out}: shard {number} of {of}")
    return 0


def show_fit(report: FitReport, arch: str, rule: str, layers: str, out: Path) -> None:
    """Print the report of a fit, and where the detector was written to."""
    alarms = report.false_alarms
    lines = {
        "network": f"{arch}, {report.n_classes} classes",
        "rule": rule,
        "layers": layers,
        "fitted on": f"{report.n_fitted} training samples",
        "accuracy": f"{report.accuracy:.1%} of {report.n_val} validation samples",
        "threshold": f"out if score <= {report.threshold:.6g}, that is p <= {report.alpha:g}",
        "false alarms": "not measured: pass --test" if alarms is None else str(alarms),
    }
    for name, text in lines.items():
        show(f"{name:<13} {text}")
    for warning in report.warnings:
        print_error(f"warning: {warning}")
    show(f"Written to {out} ({out.stat().st_size / 1e3:.0f} kB)")
