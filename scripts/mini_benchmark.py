"""Runs all methods on a benchmark with both backends and writes docs/comparison.md.

    OPENOOD_SRC=OpenOOD python scripts/mini_benchmark.py --data-root DIR --checkpoint DIR --out DIR

Fast methods run on every image; all methods run on every fifth (ODIN runs the network 32 times per
image), or every tenth with `--thin 10`, as for the page in the docs. About an hour on two cores
with the miniature CIFAR-10 benchmark. After an interruption it continues; when everything is done
it only writes the page.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from nac_openood import files
from nac_openood.benchmark.methods.table import METHODS, OPENOOD, PYTORCH_OOD
from nac_openood.benchmark.run.results import FAR, NEAR, Results
from nac_openood.cli import main as command
from nac_openood.report.comparison import verdict
from nac_openood.report.methods import Ranked
from nac_openood.tables import Cell
from nac_openood.tensor_files import versions

PAGE = Path(__file__).resolve().parents[1] / "docs" / "comparison.md"
_HEAD = """\
# The miniature CIFAR-10 benchmark with both backends

Written by `scripts/mini_benchmark.py`. The network is OpenOOD's ResNet-18, trained on CIFAR-10 for
a short schedule (accuracy {accuracy:.2f} %). Near-OOD is CIFAR-100 and Tiny ImageNet; far-OOD is
MNIST, Textures and two substitutes for SVHN and Places365. So the numbers show how methods rank on
*this* benchmark and how well both backends agree; they are not those of OpenOOD's leaderboard.

AUROC and FPR@95 in percent, of OpenOOD's own postprocessors; beside them those of pytorch-ood's
detectors. FPR@95 by both conventions (OOD found, as in OpenOOD; ID kept), see
[compare.md](compare.md#what-is-measured). For times see `benchmarks/`.

The second table thins every list, those of training and validation images too. With so few training
images, methods that learn much from them (KNN, MDS, RMDS, OpenMax) do far worse than in the first
table. Use the first one to compare methods; the second adds those that are slow.
"""
_SECTION = """
## {title}

{images:,} test images. With OpenOOD's own postprocessors: {verdict}

"""


def thinned(data_root: Path, target: Path, step: int) -> Path:
    """A data root with every `step`-th line of each list and a link to the images."""
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
    """A table of both backends, and the rank of NAC."""
    place = Path(args.out) / title.split(",")[0].replace(" ", "-").lower()
    found = [run(args, b, data_root, place / f"by-{b}", methods) for b in (OPENOOD, PYTORCH_OOD)]
    first, second = found
    args.accuracy = args.accuracy or first.runs[0].accuracy
    head = _SECTION.format(
        title=title,
        images=sum(s.images for s in first.sets),
        verdict=verdict(Ranked(first)),
    )
    return head + table(first, second)


def table(first: Results, second: Results) -> str:
    """A row per method in the order of the first results, with the second beside them."""
    lines = [
        "| | near AUROC | near FPR@95 (OOD found) | near FPR@95 (ID kept) | far AUROC "
        "| far FPR@95 (OOD found) | far FPR@95 (ID kept) | near AUROC, pytorch-ood "
        "| far AUROC, pytorch-ood | largest difference of a set, AUROC |",
        "| --- |" + " ---: |" * 9,
    ]
    for ranked in Ranked(first).methods:
        if ranked.status != "ok":
            lines.append(f"| {ranked.title} | {ranked.status} |" + " |" * 8)
            continue
        method = ranked.method
        measured = ("AUROC", "FPR@95", "FPR@95_IN")
        ours = [first.value(method, g, m) for g in (NEAR, FAR) for m in measured]
        theirs = [second.value(method, g, "AUROC") for g in (NEAR, FAR)]
        cells = [str(Cell.of(v)) for v in (*ours, *theirs)] + [difference(first, second, method)]
        title = f"**{ranked.title}**" if METHODS[method].rule else ranked.title
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def difference(first: Results, second: Results, method: str) -> str:
    """The largest difference of AUROC over the OOD sets."""
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
    fast = [name for name, method in METHODS.items() if not method.slow]
    text = section(args, "Every image, fast methods", root, fast)
    thin = thinned(root, Path(args.out) / "thinned", args.thin)
    text += section(args, f"One image of {args.thin}, all methods", thin, list(METHODS))
    made = ", ".join(f"{name} {version}" for name, version in versions().items())
    files.write_text(
        PAGE, f"{_HEAD.format(accuracy=args.accuracy)}{text}\nMade with {made}, OpenOOD 3c35632.\n"
    )


if __name__ == "__main__":
    main()
