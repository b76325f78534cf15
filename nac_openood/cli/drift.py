"""`nac-openood drift`: whether images, as a whole, are like the calibration data."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nac_openood.cli import inputs
from nac_openood.cli.options import DETECTOR, command
from nac_openood.cli.output import show, typed_command

if TYPE_CHECKING:
    from nac_openood.detector.drift import Drift


@command(
    f"""
  paths PATHS...          images, folders (with subfolders), or - for a list on stdin; text files
      for a network of texts
{DETECTOR.strip()}
how to test:
  --alpha
  --out FILE              also write a page with figures and the images that speak most for drift
  --skip-bad --batch-size --workers --device --seed
""",
    inputs.NETWORK_FORMS,
)
def drift_command(args: argparse.Namespace) -> int:
    r"""Test whether images, as a whole, are like those that a detector was calibrated on.

    One image that is unlike the calibration data is found by nac-openood score; here, many small
    differences count together. Scores and predicted classes are compared by permutation tests.

    Examples:
      nac-openood drift --detector birds.nac --arch net.py:make --checkpoint net.pt photos_may/
          one p-value for all photos: at most --alpha if they are not like the calibration data
      nac-openood drift --detector birds.nac --arch net.py:make --checkpoint net.pt photos_may/ \
          --out drift.html
          also a page with the reasons
      nac-openood score --detector birds.nac --arch net.py:make --checkpoint net.pt \
          --monitor birds.monitor photos_today/
          for a stream: an alarm as soon as there is enough evidence, whenever you look

    For exit codes see nac-openood --help.
    """
    from nac_openood.detector.outcomes import checked_alpha
    from nac_openood.files import write_text
    from nac_openood.report.drift import drift_report
    from nac_openood.report.render import render_page
    from nac_openood.sources import fitted

    alpha = checked_alpha(args.alpha)
    if args.out is not None:
        inputs.check_output(args, "out")
    pipeline = inputs.detector_of(args)
    paths = inputs.files_of(args, pipeline)
    answers = fitted.judge_images(pipeline, paths, alpha=alpha, **inputs.loading(args))
    good = [answer for answer in answers if inputs.is_readable(answer, args.skip_bad)]
    found = fitted.drift_of(pipeline.detector, good, seed=args.seed)
    _show_drift(found, alpha)
    if args.out is not None:
        detector = pipeline.detector
        page = drift_report(
            found,
            class_names=detector.classes_,
            samples=[(each.path, each.p_value) for each in good],
            alpha=alpha,
            arch=detector.notes_.get("arch", type(detector.net).__name__),
            command=typed_command(),
        )
        write_text(args.out, render_page(page))
        show(f"Written to {args.out}")
    return 0


def _show_drift(found: Drift, alpha: float) -> None:
    value, low, high = found.auroc
    verdict = (
        f"DRIFT: these {len(found.scores)} samples are not like the calibration data"
        if found.p_value <= alpha
        else f"no sign of drift in these {len(found.scores)} samples"
    )
    p_classes = "not tested" if found.p_classes is None else f"p = {found.p_classes:.2g}"
    out = (~(found.p_values > alpha)).mean()
    lines = {
        "verdict": f"{verdict} (p = {found.p_value:.2g}; drift if p <= {alpha:g})",
        "scores": f"p = {found.p_scores:.2g}",
        "classes": p_classes,
        "effect": f"a calibration sample scores higher than one of these with a probability of "
        f"{value:.3f} (99 % interval {low:.3f} to {high:.3f}; 0.5 without drift)",
        "unusual": f"{out:.1%} of these samples have p <= {alpha:g}; {alpha:.1%} or fewer expected",
        "compared with": f"{len(found.reference)} calibration samples",
    }
    for name, text in lines.items():
        show(f"{name:<14} {text}")
