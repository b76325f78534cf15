"""All methods on a benchmark by both backends, and docs/comparison.md of what came out.

    OPENOOD_SRC=OpenOOD python scripts/mini_benchmark.py --data-root DIR --checkpoint DIR --out DIR

Methods that look at features run on every image; those that need the network as well (ODIN runs
it 32 times an image) run on every fifth, and the others with them. About an hour on two cores with
the miniature CIFAR-10 benchmark. It goes on where it was interrupted; with everything done it only
writes the page.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from nac_openood.bench.methods import METHODS
from nac_openood.cli import main as command
from nac_openood.compare.backends import OPENOOD, PYTORCH_OOD
from nac_openood.compare.results import FAR, NEAR, Results
from nac_openood.core import files
from nac_openood.report.order import standings
from nac_openood.report.words import number, verdict
from nac_openood.search.output import versions

PAGE = Path(__file__).resolve().parents[1] / "docs" / "comparison.md"
_HEAD = """\
# The miniature CIFAR-10 benchmark, by both backends

Written by `scripts/mini_benchmark.py`. A ResNet-18 that OpenOOD's network class loads, trained on
CIFAR-10 for a short schedule (accuracy {accuracy:.2f} %), in OpenOOD's layout; near is CIFAR-100
and Tiny ImageNet, far is MNIST, Textures and two stand-ins for SVHN and Places365. So these numbers
say which method stands where *here*, and how far both backends agree; they are not the
leaderboard's.

AUROC and FPR@95 in percent, of OpenOOD's own postprocessors; beside them pytorch-ood's detectors.
Times are not here: the machine had other work to do. See `benchmarks/` for those.
"""
_SECTION = """
## {title}

{images:,} test images. With OpenOOD's own postprocessors: {verdict}

"""
_ON_NETWORK = ("odin", "mds_ensemble", "gram", "rankfeat", "opengan")


def thinned(data_root: Path, target: Path, step: int) -> Path:
    """A data root with every `step`-th line of each list, and links to the images."""
    lists = target / "benchmark_imglist" / "cifar10"
    lists.mkdir(parents=True, exist_ok=True)
    for path in (data_root / "benchmark_imglist" / "cifar10").glob("*.txt"):
        lines = path.read_text().splitlines(keepends=True)
        files.write_text(lists / path.name, "".join(lines[::step]))
    images = target / "images_classic"
    if not images.exists():
        images.symlink_to((data_root / images.name).resolve())
    return target


def run(
    args: argparse.Namespace, backend: str, data_root: Path, out: Path, methods: list[str]
) -> Results:
    code = command(
        ["compare", "--id-data", "cifar10", "--arch", "resnet18_32x32", "--backend", backend,
         "--data-root", str(data_root), "--checkpoint", args.checkpoint, "--out", str(out),
         "--methods", *methods]
    )  # fmt: skip
    if code not in (0, 2):
        raise SystemExit(code)
    return Results.load(out)


def section(args: argparse.Namespace, title: str, data_root: Path, methods: list[str]) -> str:
    """A table of both backends, and where NAC stands."""
    place = Path(args.out) / title.split(",")[0].replace(" ", "-").lower()
    found = [run(args, b, data_root, place / f"by-{b}", methods) for b in (OPENOOD, PYTORCH_OOD)]
    first, second = found
    args.accuracy = args.accuracy or first.runs[0].accuracy
    head = _SECTION.format(
        title=title,
        images=sum(s.images for s in first.sets),
        verdict=verdict(first, standings(first)),
    )
    return head + table(first, second)


def table(first: Results, second: Results) -> str:
    """Every method in the first's order, with the second beside it."""
    lines = [
        "| | near AUROC | near FPR@95 | far AUROC | far FPR@95 | near AUROC, pytorch-ood "
        "| far AUROC, pytorch-ood | largest difference of a set, AUROC |",
        "| --- |" + " ---: |" * 7,
    ]
    for standing in standings(first):
        if standing.status != "ok":
            lines.append(f"| {standing.title} | {standing.status} |" + " |" * 6)
            continue
        method = standing.method
        ours = [first.value(method, g, m) for g in (NEAR, FAR) for m in ("AUROC", "FPR@95")]
        theirs = [second.value(method, g, "AUROC") for g in (NEAR, FAR)]
        cells = [number(v) for v in (*ours, *theirs)] + [difference(first, second, method)]
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
    parser.add_argument("--thin", type=int, default=5)
    args = parser.parse_args()
    args.accuracy = None
    root = Path(args.data_root)
    quick = [method for method in METHODS if method not in _ON_NETWORK]
    text = section(args, "Every image, methods on features", root, quick)
    thin = thinned(root, Path(args.out) / "thinned", args.thin)
    text += section(args, f"One image of {args.thin}, all methods", thin, list(METHODS))
    made = ", ".join(f"{name} {version}" for name, version in versions().items())
    files.write_text(
        PAGE, f"{_HEAD.format(accuracy=args.accuracy)}{text}\nMade with {made}, OpenOOD 3c35632.\n"
    )


if __name__ == "__main__":
    main()
