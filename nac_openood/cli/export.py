"""`nac-openood export`: a detector and its network as one program without this package."""

from __future__ import annotations

import argparse
from pathlib import Path

from nac_openood.cli import given, options
from nac_openood.cli.output import show

_EXAMPLES = f"""\
examples:
  nac-openood export --detector birds.nac --arch net.py:make --checkpoint net.pt \\
      --out birds.onnx
      for ONNX Runtime, in any of its languages (needs pip install 'nac-openood[export]')
  nac-openood export --detector birds.nac --arch net.py:make --checkpoint net.pt \\
      --alpha 0.01 --out birds.pt2
      for torch.export.load

The program takes images as the transform makes them, [batch, channels, height, width], and returns
logits, score, p_value and decision (true where an image is out-of-distribution). Rules that need
gradients cannot be exported. See docs/export.md.
For exit codes see nac-openood --help.

{options.NETWORK_FORMS}"""
#: Side of the image that shows how large the transform makes images.
_SIDE = 256


def add(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_command(
        commands, "export", _export, epilog=_EXAMPLES,
        help="write a detector and its network as one ONNX or torch.export program",
        description="Write a fitted detector and its network as one program, which runs without "
        "this package.",
    )  # fmt: skip
    given.add_detector(parser.add_argument_group("detector and network"))
    group = parser.add_argument_group("program")
    options.add(group, "--alpha")
    options.add(
        group, "--out", default="detector.onnx", metavar="FILE",
        help="ends in .onnx or .pt2 (default: ./%(default)s)",
    )  # fmt: skip
    options.add(group, "--device")


def _export(args: argparse.Namespace) -> int:
    from PIL import Image

    from nac_openood.files import check_target

    out = Path(args.out)
    check_target(out)
    deployed = given.deployed(args, images_to="export")
    image = deployed.transform(Image.new("RGB", (_SIDE, _SIDE)))
    deployed.detector.export(out, image[None], alpha=args.alpha)
    shape = ", ".join(map(str, image.shape))
    show(f"Written to {out} ({out.stat().st_size / 1e6:.1f} MB): takes images [batch, {shape}]")
    return 0
