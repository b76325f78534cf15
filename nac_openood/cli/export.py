"""`nac-openood export`: a detector and its network as one program without this package."""

from __future__ import annotations

import argparse
from pathlib import Path

from nac_openood.cli import inputs
from nac_openood.cli.options import DETECTOR, command
from nac_openood.cli.output import show


@command(
    f"""{DETECTOR}
program:
  --alpha
  --out FILE = detector.onnx   ends in .onnx or .pt2 (default: ./%(default)s)
  --device
""",
    inputs.NETWORK_FORMS,
)
def export_command(args: argparse.Namespace) -> int:
    r"""Write a fitted detector and its network as one program, which runs without this package.

    Examples:
      nac-openood export --detector birds.nac --arch net.py:make --checkpoint net.pt \
          --out birds.onnx
          for ONNX Runtime, in any of its languages (needs pip install 'nac-openood[export]')
      nac-openood export --detector birds.nac --arch net.py:make --checkpoint net.pt \
          --alpha 0.01 --out birds.pt2
          for torch.export.load

    The program takes images as the transform makes them, [batch, channels, height, width], and
    returns logits, score, p_value and decision (true where an image is out-of-distribution). Rules
    that need gradients cannot be exported. See docs/export.md.
    For exit codes see nac-openood --help.
    """
    from PIL import Image

    from nac_openood.files import check_target

    out = Path(args.out)
    check_target(out)
    pipeline = inputs.detector_of(args, images_to="export")
    image = pipeline.transform(Image.new("RGB", (256, 256)))  # to find its image size
    pipeline.detector.export(out, image[None], alpha=args.alpha)
    shape = ", ".join(map(str, image.shape))
    show(f"Written to {out} ({out.stat().st_size / 1e6:.1f} MB): takes images [batch, {shape}]")
    return 0
