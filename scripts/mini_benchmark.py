"""All methods on a benchmark by both backends, and docs/comparison.md of what came out.

    OPENOOD_SRC=OpenOOD python scripts/mini_benchmark.py --data-root DIR --checkpoint DIR --out DIR

Takes about two hours on two cores with the miniature CIFAR-10 benchmark. It goes on where it was
interrupted; with everything done it only writes the page.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from nac_openood.cli import main as command
from nac_openood.compare.backends import OPENOOD, PYTORCH_OOD
from nac_openood.compare.results import FAR, NEAR, Results
from nac_openood.report.order import standings
from nac_openood.report.words import number, quantity, verdict

PAGE = Path(__file__).resolve().parents[1] / "docs" / "comparison.md"
_HEAD = """\
# The miniature CIFAR-10 benchmark, by both backends

Written by `scripts/mini_benchmark.py`. A ResNet-18 that OpenOOD's network class loads, trained on
CIFAR-10 for a short schedule (accuracy {accuracy:.2f} %), and {images:,} test images in OpenOOD's
layout; near is CIFAR-100 and Tiny ImageNet, far is MNIST, Textures and two stand-ins for SVHN and
Places365. So these numbers say which method stands where *here*, and how far both backends agree;
they are not the leaderboard's.

With OpenOOD's own postprocessors: {verdict}

AUROC and FPR@95 in percent. Times are of one thread of a machine that others used as well: compare
them with each other only.

"""


def run(args: argparse.Namespace, backend: str) -> Results:
    out = Path(args.out) / f"by-{backend}"
    code = command(
        ["compare", "--id-data", "cifar10", "--arch", "resnet18_32x32", "--backend", backend,
         "--data-root", args.data_root, "--checkpoint", args.checkpoint, "--out", str(out)]
    )  # fmt: skip
    if code not in (0, 2):
        raise SystemExit(code)
    return Results.load(out)


def table(first: Results, second: Results) -> str:
    """Every method in the first's order, with the second beside it."""
    lines = [
        "| | near AUROC | near FPR@95 | far AUROC | far FPR@95 | ms/image | set-up, s "
        "| near AUROC, pytorch-ood | far AUROC, pytorch-ood | largest difference of a set |",
        "| --- |" + " ---: |" * 9,
    ]
    for standing in standings(first):
        if standing.status != "ok":
            lines.append(f"| {standing.title} | {standing.status}: {standing.error} |" + " |" * 8)
            continue
        method = standing.method
        ours = [first.value(method, g, m) for g in (NEAR, FAR) for m in ("AUROC", "FPR@95")]
        theirs = [second.value(method, g, "AUROC") for g in (NEAR, FAR)]
        times = [standing.times.get(name) for name in ("ms_per_image", "setup_seconds")]
        cells = [number(v) for v in ours] + [quantity(t) for t in times]
        cells += [number(v) for v in theirs] + [difference(first, second, method)]
        title = f"**{standing.title}**" if method == "nac" else standing.title
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def difference(first: Results, second: Results, method: str) -> str:
    """Of AUROC, over the OOD sets."""
    pairs = [
        (first.value(method, name, "AUROC"), second.value(method, name, "AUROC"))
        for name in [*first.names("near"), *first.names("far")]
    ]
    found = [abs(a.mean - b.mean) for a, b in pairs if a is not None and b is not None]
    return f"{max(found):.2f}" if found else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--data-root", "--checkpoint", "--out"):
        parser.add_argument(name, required=True)
    args = parser.parse_args()
    first, second = run(args, OPENOOD), run(args, PYTORCH_OOD)
    head = _HEAD.format(
        accuracy=first.runs[0].accuracy,
        images=sum(s.images for s in first.sets),
        verdict=verdict(first, standings(first)),
    )
    made = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    PAGE.write_text(f"{head}{table(first, second)}\nMade with {made}, OpenOOD 3c35632.\n")


if __name__ == "__main__":
    main()
