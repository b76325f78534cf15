"""`nac-openood fit` and `merge`: a network and its training images become one detector file."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping

from nac_openood.cli import inputs
from nac_openood.cli.options import command
from nac_openood.cli.output import print_error, results_stream, show
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from nac_openood.core.rule import Rule
    from nac_openood.detector.checked_fit import FitReport

#: A lower accuracy on training images is reported if the weights are your own and the transform is
#: a published one.
_UNSURE = 0.75


@command(
    """
network and images:
  --arch --checkpoint --transform --image-size --train --val
  --test DATA             other ID images, to measure the false-alarm rate on
  --id-data --data-root --skip-bad
detector:
  --rule NAME = nac_plus   nac_plus needs no settings and only forward passes; nac is the
      paper's; or a rule of your own (default: %(default)s)
  --layers LAYER...       layers to read, in place of those found by running the network; nac_plus
      then leaves out a part of its score, the alignment with the head's input
  --n-samples N: count    training images to fit on, equally many of each class (default:
      1000, or 20 per class if that is more)
  --alpha
how to run:
  --out FILE = detector.nac   the detector's file (default: ./%(default)s)
  --force                 write the detector although the network's accuracy on validation images
      is far below that on training images
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

    The output says what share the detector finds of wrong predictions, and of noise, scrambled and
    mixed images, which are made from 64 validation images and are easier to find than real OOD
    images. The file holds the counts, the calibration, the names of the classes, the transform and
    a fingerprint of the network, but not the network itself. Warnings about a suspicious fit go to
    stderr.
    For exit codes see nac-openood --help.
    """
    from nac_openood.core.rule import rule_named
    from nac_openood.detector import checked_fit
    from nac_openood.detector.batches import DEFAULT_SIZE, fitting_loader
    from nac_openood.detector.config import AUTO
    from nac_openood.detector.detector import NACDetector
    from nac_openood.detector.outcomes import checked_alpha
    from nac_openood.search.power import measure_power
    from nac_openood.sources.checkpoints import PUBLISHED
    from nac_openood.sources.fitted import CHECKPOINT
    from nac_openood.sources.samples import common_files
    from nac_openood.sources.sets import classes_of

    if args.shard is None:
        inputs.check_output(args, "out")  # before the slow part, so that its result can be written
    rule_named(args.rule)
    args.ood_val, alpha = "none", checked_alpha(args.alpha)
    path = inputs.one_checkpoint(args)
    sets, transform = inputs.data_of(args, [path], needs_test=False)
    n_classes = sets.n_classes
    net = inputs.network_loader(args, n_classes)(path)
    roles = {"train": sets.train, "val": sets.id_val, "test": sets.test}
    loaders: dict[str, Any] = {
        role: inputs.loader(args, role, found) for role, found in roles.items() if found is not None
    }
    sizes = {role: len(loader.dataset) for role, loader in loaders.items()}
    detector = NACDetector(net, args.layers or "auto", rule=args.rule)
    n_samples: Any = args.n_samples or DEFAULT_SIZE
    if args.n_samples and args.n_samples >= sizes["train"]:
        n_samples = None
    # `load_fitted` reads these
    detector.classes_ = classes_of(sets.train)
    detector.notes_.update(arch=args.arch, n_classes=str(n_classes))
    if transform is not None:
        detector.notes_.update(transform=transform.text, transform_identity=transform.identity)
        detector.notes_["transform_origin"] = transform.origin
    if path is not None:
        detector.notes_[CHECKPOINT] = path if path.startswith(PUBLISHED) else Path(path).name
    if args.shard is not None:
        used: Any = fitting_loader(loaders["train"], n_samples)
        sizes["train"] = len(used.dataset)
        (number, of), batch_size = args.shard, loaders["val"].batch_size
        notes = checked_fit.ShardNotes(number, of, batch_size, alpha, n_classes, sizes)
        checked_fit.write_shard(args.out, notes, detector, **loaders, n_samples=n_samples)
        show(f"Written to {args.out}: shard {number} of {of}")
        return 0
    found = checked_fit.fit_checked(
        detector, **loaders, n_samples=n_samples, n_classes=n_classes, alpha=alpha
    )
    if found.doubt is not None and not args.force:
        raise NACError(f"{found.doubt} Nothing was written; --force writes the detector anyway.")
    detector.save(args.out)
    power = measure_power(detector, loaders["val"], loaders["train"], alpha=alpha, seed=args.seed)
    shown = "not measured, which needs square images" if power is None else str(power)
    how = "" if args.layers else " (found by running the network)"
    _show_fit(found, detector.notes_, detector._fitted(), args.out, shown, how)
    for warning in () if power is None else power.warnings:
        print_error(f"warning: {warning}")
    own_weights = path is not None and not path.startswith(PUBLISHED)
    published = own_weights and transform is not None and transform.text == AUTO
    accuracy = found.train_accuracy
    if published and accuracy is not None and accuracy < _UNSURE:
        print_error(
            f"warning: the network is right on {accuracy:.1%} of training samples, with the "
            f"transform {transform}. This should be about its accuracy during training: if it is "
            "not, pass --transform."
        )
    # networks memorize training images
    low = "New images will look unusual more often than they should: pass others as --val."
    few = "New images may cause more false alarms than these: pass others as --test."
    for name, data, effect in (("validation", sets.id_val, low), ("test", sets.test, few)):
        shared = common_files(sets.train, data)
        if shared:
            print_error(f"warning: {shared} {name} images are training images, too. {effect}")
    return 0


def _show_fit(
    report: FitReport,
    notes: Mapping[str, str],
    rule: Rule,
    out: str,
    power: str,
    how: str = "",
) -> None:
    """Print the report of a fit, and where the detector was written to."""
    from nac_openood.sources.fitted import CHECKPOINT

    alarms, accuracy = report.false_alarms, report.train_accuracy
    bar = f"out if score < {report.threshold:.6g}, that is"
    if report.threshold == -math.inf:
        bar = "none: no image can be out at"
    checkpoint = notes.get(CHECKPOINT)
    weights = f"weights of {checkpoint}" if checkpoint else "its own weights (no --checkpoint)"
    trained = "" if accuracy is None else f", {accuracy:.1%} of training samples"
    lines = {
        "network": f"{notes.get('arch', 'network')}, {report.n_classes} classes, {weights}",
        "transform": notes.get("transform_origin") or "in the data's code",
        "rule": rule.name,
        "layers": f"{', '.join(rule.layers)}{how}",
        "fitted on": f"{report.n_fitted} training samples",
        "accuracy": f"{report.accuracy:.1%} of {report.n_val} validation samples{trained}",
        "threshold": f"{bar} p <= {report.alpha:g}",
        "false alarms": "not measured: pass --test" if alarms is None else str(alarms),
        "power": power,
        "mistakes": report.mistakes or "the network makes none on validation samples",
    }
    for name, text in lines.items():
        show(f"{name:<13} {text}")
    for warning in report.warnings:
        print_error(f"warning: {warning}")
    show(f"Written to {out} ({Path(out).stat().st_size / 1e3:.0f} kB)")


@command(
    """
  shards PART...          all shards of one run, in any order, or folders of comparisons
  --out FILE              what to write (default: detector.nac for shards of fit, stdout for those
      of score); for comparisons a folder
"""
)
def merge_command(args: argparse.Namespace) -> int:
    r"""Join the shards of nac-openood fit or nac-openood score, or comparisons.

    Shards are parts of a run that may be computed on different machines and at different times.

    Examples:
      nac-openood fit --arch net.py:make --checkpoint net.pt --transform transform.yml \
          --train birds/train --val birds/val --shard 1/3 --out part1
          the first of three shards of a fit; 2/3 and 3/3 may run elsewhere, at any time
      nac-openood merge part1 part2 part3 --out birds.nac
          exactly the detector that nac-openood fit would have written without --shard
      nac-openood score --detector birds.nac --arch net.py:make --checkpoint net.pt photos/ \
          --shard 1/3 > part1.csv
      nac-openood merge part1.csv part2.csv part3.csv > birds.csv
          the same for a table of scores
      nac-openood merge results/msp_knn results/nac --out results/all
          comparisons on the same data, with different methods or networks, as one

    All shards must be made with the same options, on the same data in the same order.
    For exit codes see nac-openood --help.
    """
    from nac_openood import files
    from nac_openood.benchmark.run import results
    from nac_openood.cli.compare import publish_results
    from nac_openood.cli.score import merge_tables
    from nac_openood.detector.checked_fit import merge_shards

    paths, out = [Path(shard) for shard in args.shards], args.out
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise NACError(f"there is no {missing[0]}. Pass what nac-openood wrote with --shard.")
    if any((path / results.RESULTS_FILE).is_file() for path in paths):
        if out is None:
            raise NACError("expected --out: the folder of the merged comparison.")
        parts = list(map(results.Results.load, paths))
        found = results.merge_results(parts, Path(out))
        publish_results(found, results.RESULTS_FILE)
    elif all(path.is_dir() for path in paths):
        out = args.out = out or "detector.nac"
        inputs.check_output(args, "out")
        fitted, report = merge_shards(paths)
        fitted.save(out)
        power = "not measured: merging does not run the network"
        _show_fit(report, fitted.notes, fitted.rule, out, power)
    else:
        table = merge_tables(paths)  # checks everything before anything is written
        if out is None:
            results_stream().buffer.write(table)
        else:
            inputs.check_output(args, "out")
            with files.replacing(out) as temporary:
                temporary.write_bytes(table)
    return 0
